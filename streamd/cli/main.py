"""`streamd`: the command line. Commands of a page or less are here, others in modules of their own."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from streamd.cli.terminal import exit_without_typer, print_error, run_guarded
from streamd.core.text import escape_unprintable, format_count
from streamd.errors import ConfigError, MissingExtraError
from streamd.limits import LOOK_TIMEOUT_S

if TYPE_CHECKING:
    from streamd.config.load import ConfigInput
    from streamd.daemon.streams.manifest_archive import ExchangedList

PROGRAM = "streamd"

try:
    import typer
except ModuleNotFoundError:
    exit_without_typer(PROGRAM, "serve")

from streamd.cli.check.command import check  # noqa: E402 - after the check for typer, which says what to install
from streamd.cli.init import init  # noqa: E402 - as above
from streamd.cli.options import (  # noqa: E402 - as above
    DEFAULT_CONFIG,
    SIZE_HELP,
    ConfigOption,
    CurveSecretOption,
    CurveServerOption,
    EncodingOption,
    EndpointOption,
    JsonOption,
    LabelOption,
    RootOption,
    UncutHelpGroup,
    complete_stream_names,
    find_daemon,
    parse_size_option,
)
from streamd.cli.pack.command import pack  # noqa: E402 - as above
from streamd.cli.service import service  # noqa: E402 - as above
from streamd.cli.status.command import status, top  # noqa: E402 - as above

DEFAULT_ROWS: Final = 256
MAX_ROWS: Final = 1024  # a sheet of some 7,000 by 7,000 pixels: more than most viewers open gladly
_POSITION_PATTERN: Final = re.compile(r"([0-9]{1,12}):([0-9]{1,12})", re.ASCII)


def schema() -> None:
    """Prints the JSON schema of config.yaml, which editors use to complete keys, explain them and underline mistakes.

    Most editors read the schema's path from the first line of the configuration. Copy the comment below into that line.

    \b
    Example:
      streamd schema > config.schema.json
      # yaml-language-server: $schema=config.schema.json
    """
    from streamd.config.schema import format_json_schema  # noqa: PLC0415 - the configuration's libraries only when needed

    typer.echo(format_json_schema(), nl=False)


def serve(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="A configuration, or data to serve without one: a folder of images, a table, tars, YOLO's data.yaml, "
            "a COCO file.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The configuration; default config.yaml.", show_default=False)
    ] = None,
    size: Annotated[str | None, typer.Option("--size", metavar="SIZE", help=f"Only with PATH. {SIZE_HELP}")] = None,
    root: RootOption = None,
    label: LabelOption = None,
    encoding: EncodingOption = None,
    rescan: Annotated[
        bool, typer.Option("--rescan", help="List the samples again instead of reusing the saved list.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
) -> None:
    """Serves the streams of a configuration, or the data at PATH, until SIGTERM or Ctrl-C.

    If PATH is not a configuration itself, the daemon uses the configuration that `streamd init` would write for it. It
    logs to stderr, one event per line, as text or, with --log-json, as JSON. Under systemd, it logs to the journal,
    with all fields.

    The samples are listed at the first start, and later starts reuse that list; --rescan lists them again after files
    have changed. When the daemon ends, its trainers wait. They continue when the daemon is started again.

    SIGHUP makes it read the configuration again. Unchanged streams continue; trainers of changed streams get
    StreamChangedError, which says what to do. If the file has a mistake, the mistake is logged and the daemon keeps its
    old configuration. A change to a setting outside `streams` takes effect after a restart. A daemon that serves PATH
    has no file to read again: it keeps its streams, and --rescan lists new files at the next start.

    \b
    Examples:
      streamd serve                              # serves config.yaml in this folder
      streamd serve /data/pets --size 128        # serves a folder of images, a table, or tar files
      kill -HUP PID                              # after the file has changed; streamd status prints the PID
    """
    # Otherwise NumPy's OpenBLAS would start one thread per core for matrix products, which neither the daemon nor a
    # worker computes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from streamd.core import log  # noqa: PLC0415 - as below
    from streamd.daemon.systemd import (  # noqa: PLC0415 - only for the daemon, not for --help
        ServiceManager,
        has_waiting_connection,
        take_handed_sockets,
    )

    level = logging.DEBUG if verbose else logging.INFO
    log.configure_logging(level=level, as_json=log_json)
    manager, handed = ServiceManager.from_environment(os.environ), take_handed_sockets(os.environ)
    with ExitStack() as stack:
        copies = [stack.enter_context(link.dup()) for link in handed.values()]  # the daemon closes those it was given
        try:
            choices = {"root": root and root.absolute(), "labels": tuple(label or ()), "encoding": encoding}
            source = _choose_config_source(path, config, parse_size_option(size), choices, level=level)
            try:
                from streamd.daemon.daemon import Daemon  # noqa: PLC0415 - heavy libraries only for the daemon, not for --help
                from streamd.daemon.start_libraries import check_worker_libraries  # noqa: PLC0415 - as above
            except ModuleNotFoundError as error:
                raise MissingExtraError(error.name or "a library", "serve", "streamd serve") from error
            check_worker_libraries("streamd serve")

            async def run_until_stopped() -> None:
                await Daemon(source, rescan=rescan, manager=manager, handed_sockets=handed).run()

            asyncio.run(run_until_stopped())
        except ConfigError as error:
            if not has_waiting_connection(copies):
                raise
            print_error("streamd", str(error))
            manager.notify_refused_start_and_wait(str(error))
            raise typer.Exit(error.exit_status) from error


def _choose_config_source(
    path: Path | None, config: Path | None, size: tuple[int, int] | None, choices: Mapping[str, Any], *, level: int
) -> ConfigInput:
    """Returns the configuration file, or a configuration made from the data at `path`. Raises ConfigError."""
    if path is not None and config is not None:
        raise typer.BadParameter(
            f"PATH {str(path)!r} is served without a configuration, but --config gives one; use one of the two"
        )
    try:
        # What is heavy is loaded only when it is needed, and not for --help.
        if path is not None:
            from streamd.daemon.starter.process import build_config_in_process  # noqa: PLC0415 - as above
            from streamd.daemon.starter.survey import StarterChoices  # noqa: PLC0415 - as above
            from streamd.dataset.layouts import holds_streams  # noqa: PLC0415 - as above

            if not holds_streams(path):
                made_of = StarterChoices(**choices)
                return build_config_in_process(path, size, made_of, level=level)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd serve") from error
    if size is not None:
        raise ConfigError(
            "--size: works only with PATH, but you serve a configuration; write image: {size: [HEIGHT, WIDTH]} in "
            "the configuration"
        )
    if given := next((name for name, value in choices.items() if value), None):
        raise ConfigError(
            f"--{given.removesuffix('s')}: is for the data at PATH, but you serve a configuration; write it there"
        )
    return path or config or DEFAULT_CONFIG


def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="Use fewer images and fewer epochs; this takes less than a minute.")
    ] = False,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the model, the chart and the receipts go.")
    ] = Path("streamd-demo"),
) -> None:
    """Draws road images with steering angles, serves them, trains on them, and kills the daemon during training.

    The daemon and the trainer are separate processes, started with the commands that you would use. While the trainer
    runs, the daemon is killed with kill -9 and started again; the receipts then show that nothing was lost or repeated.
    """
    for library, extra in (("pydantic", "serve"), ("rich", "serve"), ("keras", "train"), ("tensorflow", "train")):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, extra, "streamd demo")
    from streamd.cli.demo import FULL_DEMO, QUICK_DEMO, run_demo  # noqa: PLC0415 - only once its libraries are known to be here

    run_demo(*(QUICK_DEMO if quick else FULL_DEMO), output)


def show(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.", autocompletion=complete_stream_names)],
    place: Annotated[
        str,
        typer.Argument(metavar="EPOCH:INDEX", help="The epoch and the index of the batch in it, both counted from 0."),
    ] = "0:0",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The PNG; default batch-STREAM-EPOCH-INDEX.png."),
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, max=MAX_ROWS, metavar="N", help="Show at most the first N rows.")
    ] = DEFAULT_ROWS,
    endpoint: EndpointOption = None,
    curve_secret: CurveSecretOption = None,
    curve_server: CurveServerOption = None,
) -> None:
    """Draws the batch that trainers get from a running daemon at the given epoch and index, as one picture.

    Small images are enlarged without smoothing, large ones reduced. All images of a sample are side by side; masks are
    laid over their pictures, boxes and points are drawn on them. Below each sample are its labels, its id and its file.
    An image whose sample was bad has a frame and shows the reason; an image with weight 0 is hatched.

    \b
    Example:
      streamd show train 0:12 -o batch.png
    """
    epoch, index = parse_batch_position(place)
    path = output or Path(f"batch-{stream}-{epoch}-{index}.png")
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{path}: the sheet is a PNG; give a name that ends in .png")

    from streamd import connect  # noqa: PLC0415 - ZeroMQ and Pillow only when they are needed, not for --help
    from streamd.decode.drawn_picture import draw_sheet  # noqa: PLC0415 - as above

    with connect(find_daemon(endpoint, curve_secret, curve_server), timeout=LOOK_TIMEOUT_S) as client:
        batch = client.batch(stream, epoch, index)
        ids = batch.sample_ids[:rows].tolist()
        files = {sample_id: name for sample_id, name in zip(ids, client.names(stream, ids), strict=True) if name}
    draw_sheet(batch, files, rows).save(path, format="PNG")
    some = f"the first {rows} of " if rows < len(batch) else ""
    typer.echo(f"{path}: {some}{len(batch)} row{'' if len(batch) == 1 else 's'} of {stream} {epoch}:{index}")


def parse_batch_position(text: str) -> tuple[int, int]:
    """Parses `EPOCH:INDEX` into (epoch, index). Raises ConfigError, which says how to write a position."""
    found = _POSITION_PATTERN.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} does not name a batch; write EPOCH:INDEX, both counted from 0: 0:12 is the thirteenth batch of "
            "the first epoch"
        )
    return int(found[1]), int(found[2])


def probe(
    stream: Annotated[
        str, typer.Argument(metavar="STREAM", help="The stream to drain.", autocompletion=complete_stream_names)
    ],
    endpoint: EndpointOption = None,
    curve_secret: CurveSecretOption = None,
    curve_server: CurveServerOption = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs to drain.")] = 1,
    trainers: Annotated[
        int, typer.Option(min=1, metavar="K", help="How many trainer processes run at the same time.")
    ] = 1,
    headroom: Annotated[
        bool, typer.Option("--headroom", help="Also replay batches from memory, to measure the rate without loading.")
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:STEP", help="Your function, such as a training step. It is called with each batch."
        ),
    ] = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Also compute a digest of the order, ids, labels and pixels.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Drains a stream as fast as possible, and reports the rate, the time spent waiting, and the receipts.

    Each trainer is a separate process that reads one byte of every memory page. decodes/batch shows how well they
    share: 1 means that each batch was decoded once for all of them. A line for each epoch names what limited it: disk,
    if workers waited for reads; decode, if all workers were busy; transport, if batches were ready but the trainer
    still waited for them; or the trainer itself. Draining should take at least a few seconds: for a small stream, raise
    --epochs.

    With --headroom, the probe then gives each trainer the same 16 batches from memory, again and again, and reports the
    rate without any loading. A trainer without a training step mostly waits for data, so name your own step with
    --load. If the probe then reports that data cost next to nothing, a faster data pipeline would not speed up your
    training. The first batch is not timed, so a step may compile during it. A step must not return before its work is
    done.

    \b
    Examples:
      streamd probe train --trainers 4 --epochs 2
      streamd probe train --headroom
      streamd probe train --headroom --load mytrainer:step

    \b
      # mytrainer.py, in the current directory
      model = ...                             # made once
      def step(batch):                        # batch.images, batch.labels["label"], ...
          model.train_on_batch(batch.images, batch.labels["label"])
    """
    from streamd.cli.probe import TrainerRequest, probe_stream  # noqa: PLC0415 - ZeroMQ only when it is needed

    request = TrainerRequest(stream, find_daemon(endpoint, curve_secret, curve_server), epochs, digest, load, headroom)
    result = probe_stream(request, trainers, lambda line: typer.echo(line, err=True))
    typer.echo(msgspec.json.encode(result).decode() if json else "\n".join(result.format_lines()))
    raise typer.Exit(0 if result.ok else 1)


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Receipts of all ranks: receipts-RANK.jsonl, or output of probe --json."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Checks that the receipts of all ranks add up to one epoch, each batch once, whatever their hosts and worlds were.

    Give the files of all ranks: those that ResumeCallback and `streamd-train --resume DIR` write as
    DIR/receipts-RANK.jsonl, one line for each receipt.to_json(), or the output of `streamd probe --json`. Each epoch in
    them is added up. The same steps in several files count once, and their digests are computed again from the plan.

    Names the batches that are missing, that came twice, and those for which the files differ, and ranks that saw other
    pixels. A rank that continued from a token has in its receipt what all ranks had done until then: such parts are
    listed as "by token". Steps that the job repeated, since it continued at an earlier token, count once. Receipts that
    say `changed`, and those of versions without the identity of the pixels, are noted.

    The exit status is 0 if every epoch is one epoch exactly, 1 if not, and 2 if a file cannot be read, or a receipt in
    it has numbers that contradict each other.

    \b
    Example:
      streamd verify run-*/receipts-*.jsonl
    """
    from streamd.cli.verify import build_epoch_report, read_receipts  # noqa: PLC0415 - NumPy only when it is needed
    from streamd.core.rank_receipts import add_up_receipts  # noqa: PLC0415 - as above

    sums = add_up_receipts([each for file in files for each in read_receipts(file)])
    is_whole = all(each.is_one_epoch for each in sums)
    if json:
        typer.echo(msgspec.json.encode({"ok": is_whole, "epochs": [*map(build_epoch_report, sums)]}))
    else:
        for each in sums:
            for line in each.format_lines():
                typer.echo(escape_unprintable(line))
    raise typer.Exit(0 if is_whole else 1)


def keygen(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the two files; made if missing.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of the pair; default the folder's own.")
    ] = None,
) -> None:
    """Makes a CURVE key pair: NAME.key, which others may read, and NAME.key_secret, which stays where it is."""
    from streamd.client.sockets import create_key_pair  # noqa: PLC0415 - not needed for --help
    from streamd.ipc.key_files import write_key_files  # noqa: PLC0415 - as above

    chosen = folder.absolute().name if name is None else name
    if not chosen or "/" in chosen or chosen.startswith("."):
        raise ConfigError(f"--name {chosen!r}: this cannot be the name of a file; use letters and digits")
    try:
        public, secret = write_key_files(folder, chosen, create_key_pair())
    except OSError as error:
        raise ConfigError(f"cannot write keys to {folder}: {error.strerror}; choose a folder of your own") from error
    typer.echo(f"{public} may be read by anyone: copy it to the hosts that should know this key")
    typer.echo(f"{secret} is the secret half: keep it where it is used, readable by its user alone")


# --- takes lists of samples from one host to another


manifest = typer.Typer(
    cls=UncutHelpGroup, no_args_is_help=True, rich_markup_mode=None,
    help="Takes the lists of samples to another host, which then serves the same batches from its copy of the data.",
)  # fmt: skip

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the lists.")]


@manifest.command("export")
def export_manifests(file: FileArgument, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Writes the lists of all streams of a configuration to FILE, for another host.

    The lists are those that `streamd serve` uses, from the same state folder; streams that were not listed yet are
    listed now. FILE names neither this host's folders nor the times of its files. It also has the verdicts on samples
    whose bytes were read and cannot be decoded; those on files that this host could not read stay here.

    \b
    Example:
      streamd manifest export lists.streamd
    """
    try:
        from streamd.config.load import add_error_locations, load_config  # noqa: PLC0415 - heavy libraries only when they are needed, not for --help
        from streamd.daemon.streams.catalog import find_state_directory, find_unlisted_streams  # noqa: PLC0415 - as above
        from streamd.daemon.streams.listing_process import list_samples_in_process  # noqa: PLC0415 - as above
        from streamd.daemon.streams.manifest_archive import export_lists  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd manifest") from error
    settings, state = load_config(config), find_state_directory()
    if find_unlisted_streams(settings, state):
        asyncio.run(list_samples_in_process(config, state))
    with add_error_locations(settings):
        _print_lists(export_lists(settings, state, file))


@manifest.command("import")
def import_manifests(file: FileArgument, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Makes the lists in FILE those of this host, whose configuration may differ only in its paths.

    Every listed file is looked up below this host's paths, and must have the listed size. Its time may be another one:
    this host's own times are recorded, so that a file that changes later is noticed. Nothing is changed if a file is
    missing. A daemon that serves these lists must be stopped first. Verdicts of this host on the same streams are
    replaced by those in FILE.

    Streams of equal settings then have the same order on both hosts, and with the same versions installed the same
    pixels. Set `expect` in the configuration to be sure; `streamd check` prints what to write.

    \b
    Example:
      streamd manifest import lists.streamd
    """
    try:
        from streamd.cli.terminal import create_progress_display  # noqa: PLC0415 - heavy libraries only when they are needed, not for --help
        from streamd.config.load import add_error_locations, load_config  # noqa: PLC0415 - as above
        from streamd.daemon.streams.catalog import find_state_directory  # noqa: PLC0415 - as above
        from streamd.daemon.streams.manifest_archive import import_lists  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd manifest") from error
    settings = load_config(config)
    with add_error_locations(settings), create_progress_display() as shown:
        lists = import_lists(settings, find_state_directory(), file, shown.update_listing)
    _print_lists(lists)


def _print_lists(lists: Iterable[ExchangedList]) -> None:
    for each in lists:
        samples, verdicts = format_count(each.samples, "sample"), format_count(each.verdicts, "verdict")
        typer.echo(f"{each.stream}: {samples}, order {each.order_id}, {verdicts}")


def completion(context: typer.Context) -> None:
    """Names the option that took this command's place: shells complete by what typer installs for them."""
    del context
    raise ConfigError(
        "`streamd completion` is gone: run  streamd --install-completion  and  streamd-train --install-completion"
    )


# --- the application


app = typer.Typer(
    cls=UncutHelpGroup,
    pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True,
    help="Load once, train many: serves shuffled, decoded image batches to any number of trainers on this host.",
)  # fmt: skip
_COMMANDS: Final[tuple[Callable[..., None], ...]] = (
    init, serve, check, status, top, show, probe, pack, verify, keygen, schema, demo,
)  # fmt: skip
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(manifest, name="manifest")
app.add_typer(service, name="service")
app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(completion)


@app.callback(invoke_without_command=True)
def print_version_or_help(
    context: typer.Context, show: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    """Load once, train many: serves shuffled, decoded image batches to any number of trainers on this host."""
    if show:
        from streamd import __version__  # noqa: PLC0415 - one line's need

        typer.echo(f"streamd {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    run_guarded(PROGRAM, app)


if __name__ == "__main__":
    main()
