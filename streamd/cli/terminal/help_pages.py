"""`--help` pages without truncated sentences."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup

_WHOLE: Final = 1000  # characters, more than the first sentence of any command has


class UncutHelpGroup(TyperGroup):
    """A group that lists each command with its whole first sentence, wrapped if it is long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the list of commands like click, but without cutting each sentence to one line.

        The arguments have click's types, or those of the copy of click that some versions of typer contain.
        """
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
