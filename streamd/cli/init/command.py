"""`streamd init`: writes a first config.yaml for the data at a path."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streamd.cli.check.command import capture_source_notes
from streamd.cli.options import (
    DEFAULT_CONFIG,
    SIZE_HELP,
    EncodingOption,
    LabelOption,
    RootOption,
    parse_size_option,
)
from streamd.errors import ConfigError, MissingExtraError, OutputExistsError

if TYPE_CHECKING:
    from streamd.daemon.starter.starter_config import StarterConfig

_STANDARD_OUTPUT: Final = Path("-")
_SHOWN_CLASSES: Final = 10  # with their counts


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A folder of images, a table, tars, YOLO's data.yaml, a COCO file.")
    ],
    size: Annotated[str | None, typer.Option("--size", metavar="SIZE", help=SIZE_HELP)] = None,
    root: RootOption = None,
    label: LabelOption = None,
    encoding: EncodingOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The configuration to write; - prints it.")
    ] = DEFAULT_CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Writes a first config.yaml for the data at PATH: a folder of images, a .csv, .tsv or .parquet table, tar files, a
    YOLO data set, or a COCO file.

    The sub-folders train, validation (or val, valid) and test become streams. If there is no sub-folder for validation,
    about a fifth of the samples is held out for validation. Any other sub-folder is a class, unless the folders are
    those of a known layout: pictures with masks of the same names, YOLO and COCO are taken as such, and what is not
    clear is refused by its name. In a table, init finds the column of file names. It also guesses which other columns
    are labels, and which type each label has. It scans the samples in the same way as `streamd serve` would. Nothing is
    written to PATH.

    \b
    Examples:
      streamd init /data/pets --size 128
      streamd init /data/drive/all.csv --size 66x200 -o drive.yaml
    """
    try:
        from streamd.cli.init.config_text import format_starter_config  # noqa: PLC0415 - heavy libraries only when they are needed, not for --help
        from streamd.cli.terminal import create_progress_display  # noqa: PLC0415 - as above
        from streamd.daemon.starter.data_survey import StarterChoices  # noqa: PLC0415 - as above
        from streamd.daemon.starter.starter_config import make_starter_config  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd init") from error
    wanted, choices = parse_size_option(size), StarterChoices(root and root.absolute(), tuple(label or ()), encoding)
    check_output_place(output, path, force=force)
    with capture_source_notes() as notes, create_progress_display() as shown:
        starter = make_starter_config(path, wanted, shown, choices)
    options = [
        ("--size", size),
        ("--root", root),
        *(("--label", each) for each in label or ()),
        ("--encoding", encoding),
    ]
    given = [str(each) for option in options if option[1] for each in option]
    command = shlex.join(["streamd", "init", str(path), *given])
    text = format_starter_config(starter, command, lambda each: spell_path(each, path, output))
    if output == _STANDARD_OUTPUT:
        typer.echo(text, nl=False)
    else:
        write_config(output, text, force=force)
    for line in iterate_summary_lines(starter, notes, output):
        typer.echo(line, err=True)


def check_output_place(output: Path, data: Path, *, force: bool) -> None:
    """Raises OutputExistsError if the file exists, or would be within the data; ConfigError where none can be."""
    if output == _STANDARD_OUTPUT:
        return
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder; give the path of the file in it, such as {output / 'config.yaml'}")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {output.absolute().parent}; create it, or choose another file")
    folder, inside = os.path.realpath(output.absolute().parent), os.path.realpath(data)
    if folder == inside or folder.startswith(f"{inside.rstrip('/')}/"):
        raise OutputExistsError(
            f"{output}: would be inside the data, which init does not change; run init in another folder, or choose a "
            "file elsewhere with -o"
        )
    if output.exists() and not force:
        raise OutputExistsError(_format_exists(output))


def _format_exists(output: Path) -> str:
    return (
        f"{output}: already exists; use --force to replace it, -o FILE to write another file, or -o - to print the "
        "configuration"
    )


def write_config(output: Path, text: str, *, force: bool) -> None:
    """Writes the file. Raises OutputExistsError if one was created meanwhile, OSError."""
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OutputExistsError(_format_exists(output)) from error


def spell_path(path: Path, given: Path, output: Path) -> str:
    """Returns a data path as written in the file: absolute if it was `given` so, else relative to the file's folder.

    It is absolute too if, because of symbolic links, the relative path would lead elsewhere.
    """
    folder = Path.cwd() if output == _STANDARD_OUTPUT else output.absolute().parent
    relative = os.path.relpath(path, folder)
    is_same = os.path.realpath(folder / relative) == os.path.realpath(path)
    return str(path) if given.expanduser().is_absolute() or not is_same else relative


def iterate_summary_lines(starter: StarterConfig, notes: Iterable[str], output: Path) -> Iterator[str]:
    """Yields the lines about what was found, with the `notes` of the listing, and what to run next."""
    from streamd.core.text import escape_unprintable, format_count  # noqa: PLC0415 - not for --help

    samples = ", ".join(f"{name} {each.samples:,}" for name, each in starter.samples.items())
    total = sum(each.samples for each in starter.samples.values())
    height, width = starter.size
    why = f" ({starter.why_size})" if starter.why_size else ""
    yield f"{format_count(total, 'sample')}: {samples}"
    for name in starter.samples["train"].specs:
        yield escape_unprintable(f"label {name}: {_describe_label(starter, name)}")
    yield f"images of {height}x{width}, height x width{why}"
    for remark in starter.iterate_remarks():
        yield escape_unprintable(remark)
    for note in notes:
        yield escape_unprintable(note)
    if output == _STANDARD_OUTPUT:
        return
    named = "" if output == DEFAULT_CONFIG else f" --config {shlex.quote(str(output))}"
    yield f"{output} is written. Next:"
    yield f"  streamd check{named}    # counts, copies, files that cannot be read"
    yield f"  streamd serve{named}    # in a terminal of its own"


def _describe_label(starter: StarterConfig, name: str) -> str:
    from streamd.core.text import format_count  # noqa: PLC0415 - not for --help

    specs = [each.specs[name] for each in starter.samples.values() if name in each.specs]
    if not specs[0].classes:
        return specs[0].type
    totals = [sum(counts) for counts in zip(*(spec.counts for spec in specs), strict=True)]
    shown = ", ".join(
        f"{each} {count:,}" for each, count in list(zip(specs[0].classes, totals, strict=True))[:_SHOWN_CLASSES]
    )
    more = ", ..." if len(specs[0].classes) > _SHOWN_CLASSES else ""
    return f"{format_count(len(specs[0].classes), 'class', 'classes')}: {shown}{more}"
