"""`streamd pack`: a stream written once as a store that is read faster."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from streamd.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption, complete_stream_names
from streamd.cli.terminal import capture_log
from streamd.core.text import escape_unprintable, format_count, format_duration, split_long_list
from streamd.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from streamd.cli.pack.run import PackFormat, PackResult

_MAX_BAD_SHOWN: Final = 10  # samples that are named; --json names all


def pack(
    stream: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="The stream of the configuration to pack.", autocompletion=complete_stream_names
        ),
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="Where to write the store; nothing may exist there yet.")
    ],
    format_: Annotated[str, typer.Option("--format", metavar="npy|tar|hdf5|lmdb", help="The format of the store.")],
    config: ConfigOption = DEFAULT_CONFIG,
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle",
            help="Write the samples in one shuffled order, from the stream's seed; default: in stored order.",
        ),
    ] = False,
    shard_bytes: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="SIZE",
            help="Only for npy and tar: how large each file may become; default 4GiB for npy, 1GiB for tar.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the unfinished pack of an earlier run, and start again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Writes the samples of a stream into one store that is faster to read. No daemon is needed.

    \b
    npy   a folder: decoded images in images-00000.npy and so on, labels in labels.parquet; the fastest to serve
    hdf5  one file: decoded images in /images, the label NAME in /labels/NAME; h5py and PyTables read the file
    lmdb  a folder in the layout of ml-pyxis: decoded images as X, labels under their names
    tar   WebDataset shards: the encoded files as they are (arrays as PNG), labels in a .json beside each image

    Decoded images have the size that the stream gives them. In tar, encoded files keep their own size, and are resized
    when the pack is served. Several images a sample lie under their names, with boxes and points beside them. Transform
    and normalize always apply later, when the pack is served.
    Samples that cannot be decoded are left out, and the command reports them; if bad_samples.policy is fail, the first
    such sample ends the command.

    The pack is made in a hidden folder beside DEST, read back from the disk and compared, then renamed: what is at DEST
    is always complete. If the command is interrupted in any way, run it again: npy and tar continue after the last file
    that is whole, hdf5 and lmdb begin again, and the command says which. At the end, it prints what to write into the
    configuration.

    \b
    Examples:
      streamd pack train packed/train --format npy
      streamd pack train train.h5 --format hdf5 --shuffle
    """
    try:
        from streamd.cli.pack import run  # noqa: PLC0415 - heavy libraries only when they are needed, not for --help
        from streamd.cli.terminal import create_progress_display  # noqa: PLC0415 - as above
        from streamd.config.load import load_config  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd pack") from error
    options = run.PackOptions(
        stream, destination, parse_format(format_), shuffle, restart, parse_shard_size(shard_bytes)
    )

    def print_warning(record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        named = f"{fields['file']}: " if "file" in fields else ""
        shown.print_note(escape_unprintable(f"{named}{record.getMessage()}"))

    # The engine's warnings would disturb the progress display.
    with create_progress_display() as shown, capture_log("streamd", logging.WARNING, print_warning):
        try:
            packed = run.pack_stream(load_config(config), options, shown)
        except KeyboardInterrupt:
            next_run = run.describe_next_run(options.format)
            shown.print_note(f"stopped; nothing has been put in place yet. Run the same command again: {next_run}")
            raise
    if json:
        typer.echo(msgspec.json.encode(packed).decode())
    else:
        _print_result(packed, stream)


def parse_format(text: str) -> PackFormat:
    """Parses a format's name. Raises ConfigError for an unknown one."""
    from streamd.cli.pack.run import PACK_FORMATS  # noqa: PLC0415 - as above

    for name in PACK_FORMATS:
        if name == text:
            return name
    raise ConfigError(f"--format {text!r}: use {', '.join(PACK_FORMATS)}")


def parse_shard_size(text: str | None) -> int | None:
    """Parses a size such as `4GiB` into bytes. Raises ConfigError."""
    from streamd.config.units import parse_bytes  # noqa: PLC0415 - as above

    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"--shard: {error}") from error


def _print_result(result: PackResult, stream: str) -> None:
    from streamd.cli.pack.label_cells import format_yaml  # noqa: PLC0415 - as above
    from streamd.config.units import format_bytes  # noqa: PLC0415 - as above

    typer.echo(
        f"{escape_unprintable(result.path)}: {format_count(result.samples, 'sample')}, {format_bytes(result.bytes)}, "
        f"in {format_duration(result.seconds)} ({result.samples_per_s:,.0f} samples/s), read back in "
        f"{format_duration(result.verified_s)}"
    )
    if result.bad:
        typer.echo(f"{format_count(len(result.bad), 'sample')} left out:")
        shown, left_out = split_long_list(result.bad, _MAX_BAD_SHOWN)
        for each in shown:
            typer.echo(escape_unprintable(f"  {each.file}: {each.reason}"))
        if left_out:
            typer.echo(f"  and {left_out:,} more; --json names all")
    typer.echo("Serve it with")
    typer.echo(format_yaml({"streams": {stream: result.serving}}), nl=False)
