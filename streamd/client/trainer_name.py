"""The name of a trainer in the daemon's status: the one it gives, or else its program's."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Final

from streamd.core.text import shorten_text
from streamd.errors import ConfigError
from streamd.limits import MAX_TRAINER_NAME_CHARS

_KERNEL_LAUNCHER: Final = "kernel_launcher.py"  # ipykernel's, and those of its relatives


def parse_trainer_name(name: str | None) -> str:
    """Returns the name to subscribe with: `name`, or the program's if None. Raises ConfigError for an invalid name."""
    if name is None:
        return shorten_text(find_program_name(sys.argv), MAX_TRAINER_NAME_CHARS)
    if not isinstance(name, str):
        raise ConfigError(f'name {name!r}: a text such as name="lr-0.01", or None for the program\'s name')
    if not name.strip() or not name.isprintable() or len(name) > MAX_TRAINER_NAME_CHARS:
        raise ConfigError(
            f"name {name!r}: 1 to {MAX_TRAINER_NAME_CHARS} printable characters, which tables have room for"
        )
    return name


def find_program_name(arguments: list[str]) -> str:
    """Returns the file name of the script, `notebook` in a notebook, or `python` if there is no script."""
    path = PurePath(arguments[0] if arguments else "")
    if path.name.endswith(_KERNEL_LAUNCHER):
        return "notebook"
    if path.name == "__main__.py":  # python -m package
        return path.parent.name or "python"
    return "python" if path.name in {"", "-c", "-m"} else path.name
