"""Pages of `--help` on which nothing is cut."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

_WHOLE: Final = 1000  # characters, more than the first sentence of any command has


class UncutHelpGroup(TyperGroup):
    """A group whose list of commands has the whole first sentence of each, wrapped where it is long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list as click does, which cuts each sentence to one line.

        Its types are those of click, or of the click that some versions of typer bring along.
        """
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
