"""Options that several commands share: `--config`, and `--size` for a path of data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from streamd.errors import ConfigError

DEFAULT_CONFIG: Final = Path("config.yaml")
SIZE_HELP: Final = "The size of the images, N or HEIGHTxWIDTH; without it the pictures' own if all are equal, else 224."
_SIZE_PATTERN: Final = re.compile(r"([0-9]{1,5})(?:[xX]([0-9]{1,5}))?", re.ASCII)

ConfigOption = Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration.")]


def parse_size_option(text: str | None) -> tuple[int, int] | None:
    """Parses `128` or `66x200` into (height, width). Raises ConfigError, which says how to write a size."""
    if text is None:
        return None
    found = _SIZE_PATTERN.fullmatch(text.strip())
    sides = () if found is None else (int(found[1]), int(found[2] or found[1]))
    if not sides or 0 in sides:
        raise ConfigError(
            f"--size {text!r}: this is not a size; write N for squares, or HEIGHTxWIDTH, such as 128 or 66x200"
        )
    return sides
