"""How paths are spelled in units of systemd: words of a setting, and the mounts that a path may lie on.

systemd.syntax(7), systemd.exec(5), systemd.unit(5). Pure.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

from streamd.core.text import is_encodable
from streamd.errors import ConfigError

_UNIT_NAME_BYTES: Final = 255
_PLAIN_BYTES: Final = frozenset((string.ascii_letters + string.digits + ":_.").encode())
_UNSTARTABLE_CHARS: Final = frozenset("'\"\\")
_UNQUOTED_CHARS: Final = frozenset(string.ascii_letters + string.digits + "/._-+,@=")


def quote_path(path: PurePath | str) -> str:
    """A path as one word of a setting that knows quotes and specifiers, such as ExecStart= and BindReadOnlyPaths=.

    One of plain characters stays as it is. Raises ConfigError for a path that no unit can hold.
    """
    text = str(path)
    if _UNQUOTED_CHARS.issuperset(text):
        return text
    if not is_encodable(text) or not text.isprintable():
        raise ConfigError(f"a unit of systemd cannot name {text!a}: install streamd at a path of printable UTF-8")
    for mark, written in (("\\", r"\\"), ('"', r"\""), ("%", "%%")):
        text = text.replace(mark, written)
    return f'"{text}"'


def format_start_command(path: PurePath | str) -> str:
    """A command with which ExecStart= may begin. Raises ConfigError as `quote_path` does.

    systemd starts none whose name has quotes or a backslash; a shell does, and leaves its process to it.
    """
    word = quote_path(path)
    if not _UNSTARTABLE_CHARS.intersection(str(path)):
        return word
    return f'/bin/sh -c \'exec "$$0" "$$@"\' {word.replace("$", "$$")}'


def list_mount_units(paths: Iterable[PurePath]) -> list[str]:
    """The units of all mounts that these absolute paths may lie on, the outermost first; `/` is always there."""
    places = {part for path in paths for part in (path, *path.parents) if part.name}
    names = [f"{escape_path(place)}.mount" for place in sorted(places)]
    return [name for name in names if len(name) <= _UNIT_NAME_BYTES]  # systemd has no unit for the others either


def escape_path(path: PurePath) -> str:
    """As `systemd-escape --path` spells it."""
    return "-".join(_escape_part(str(part), is_first=not number) for number, part in enumerate(path.parts[1:]))


def _escape_part(part: str, *, is_first: bool) -> str:
    data = part.encode(errors="surrogateescape")
    return "".join(
        chr(byte) if byte in _PLAIN_BYTES and not (is_first and not place and byte == ord(".")) else rf"\x{byte:02x}"
        for place, byte in enumerate(data)
    )
