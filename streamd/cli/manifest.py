"""`streamd manifest`: takes lists of samples from one host to another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamd.cli.options import DEFAULT_CONFIG, ConfigOption, UncutHelpGroup
from streamd.core.text import format_count
from streamd.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamd.daemon.streams.manifest_archive import ExchangedList

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
