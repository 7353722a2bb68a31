"""`streamd check`: checks the configuration and its data before a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec
import typer

from streamd.cli.options import DEFAULT_CONFIG, ConfigOption, JsonOption
from streamd.cli.terminal import capture_source_notes, exit_with_error
from streamd.core.text import escape_unprintable
from streamd.errors import ConfigError, MissingExtraError

_QUICK_FILES: Final = 500


def check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The configuration, as with --config.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    quick: Annotated[bool, typer.Option("--quick", help=f"Read {_QUICK_FILES} files of each stream.")] = False,
    sample: Annotated[int | None, typer.Option(min=1, metavar="N", help="Read N files of each stream.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List every class, duplicate and unreadable file, not just the first ones.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Checks the configuration, and reads and decodes every file as the daemon would.

    Reports classes and their counts, ranges of labels, formats and sizes, duplicate files, files that two streams
    share, unreadable files and why each is unreadable, how many trainers fit into memory, and how long an epoch takes.
    The exit status is 1 if something has to be fixed. Nothing is changed or left behind.

    \b
    Example:
      streamd check --quick
    """
    from streamd.daemon.start_libraries import check_worker_libraries  # noqa: PLC0415 - not for --help

    if file is not None and config != DEFAULT_CONFIG:
        raise typer.BadParameter(
            f"FILE {str(file)!r} is one configuration, and --config gives another; use one of them"
        )
    try:
        check_worker_libraries("streamd serve")
    except ConfigError as error:
        _exit_with_trouble(error, as_json=json)
    try:
        from rich.console import Console  # noqa: PLC0415 - heavy libraries only when they are needed, not for --help

        from streamd.cli.check import run  # noqa: PLC0415 - as above
        from streamd.cli.check.findings import ReportOptions, format_report  # noqa: PLC0415 - as above
        from streamd.cli.terminal import create_progress_display  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "a library", "serve", "streamd check") from error
    try:
        with capture_source_notes() as notes, create_progress_display() as shown:
            findings = run.inspect_data(file or config, shown, sample or (_QUICK_FILES if quick else None))
    except ConfigError as error:
        _exit_with_trouble(error, as_json=json)
    findings = replace(findings, notes=[*notes, *findings.notes])
    if json:
        typer.echo(findings.to_json())
    else:
        console = Console(highlight=False, markup=False, emoji=False)
        options = ReportOptions(everything, "#" if console.options.ascii_only else "█")
        for line in format_report(findings, options):
            console.print(escape_unprintable(line.text), style=line.style, soft_wrap=True)
    raise typer.Exit(1 if findings.troubles else 0)


def _exit_with_trouble(error: ConfigError, *, as_json: bool) -> NoReturn:
    """Exits with 1: a configuration that `serve` would refuse is a finding like any other, and not a usage error."""
    if as_json:
        typer.echo(msgspec.json.encode({"ok": False, "troubles": str(error).splitlines(), "warnings": []}))
    exit_with_error("streamd", str(error), status=1)
