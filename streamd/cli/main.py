"""`streamd`: one door, one file a command."""

from __future__ import annotations

from streamd.cli.terminal.run_guarded import exit_without_typer, run_guarded

PROGRAM = "streamd"

try:
    import typer
except ModuleNotFoundError:
    exit_without_typer(PROGRAM, "serve")

from streamd.cli.check.command import check  # noqa: E402 - after the check for typer, which says what to install
from streamd.cli.completion import completion, streams  # noqa: E402 - as above
from streamd.cli.demo.command import demo  # noqa: E402 - as above
from streamd.cli.pack.command import pack  # noqa: E402 - as above
from streamd.cli.probe.command import probe  # noqa: E402 - as above
from streamd.cli.schema import schema  # noqa: E402 - as above
from streamd.cli.serve import serve  # noqa: E402 - as above
from streamd.cli.service import service  # noqa: E402 - as above
from streamd.cli.show.command import show  # noqa: E402 - as above
from streamd.cli.status.command import status  # noqa: E402 - as above
from streamd.cli.status.top_command import top  # noqa: E402 - as above

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, no_args_is_help=True,
    help="Load once, train many: serves shuffled, decoded image batches to any number of trainers on this host.",
)  # fmt: skip
app.command()(serve)
app.command()(check)
app.command()(status)
app.command()(top)
app.command()(show)
app.command()(probe)
app.command()(pack)
app.command()(schema)
app.add_typer(service, name="service")
app.command()(completion)
app.command(hidden=True)(streams)
app.command()(demo)


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
