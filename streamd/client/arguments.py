"""The arguments of `connect`, `subscribe` and the questions, checked before anything is sent.

The daemon drops a frame that it cannot read, so a wrong argument must never leave this process. Numbers of NumPy are
accepted, and turned into Python's.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import PurePath
from typing import Final, Literal, SupportsIndex, TypeVar

from streamd.client.ranks import find_library_ranks, find_rank
from streamd.core.text import shorten_text
from streamd.errors import ConfigError, suggest_name
from streamd.ipc.endpoint import is_remote
from streamd.limits import (
    CONNECT_TIMEOUT_S,
    MAX_EPOCHS,
    MAX_SESSIONS,
    MAX_TRAINER_NAME_CHARS,
    MAX_WORLD,
)

MAX_NUMBER: Final = MAX_EPOCHS - 1  # of any count: within a frame's integers
_MAX_TIMEOUT_S: Final = 1e9  # 30 years; Python's locks take no more than 292
_MAX_VALUE_CHARS: Final = 60
_KERNEL_LAUNCHER: Final = "kernel_launcher.py"  # ipykernel's, and those of its relatives
_SAMPLE_IDS_REMEDY: Final = "write whole numbers, such as batch.sample_ids or [0, 1]"

Word = TypeVar("Word", bound=str)


def format_argument(name: str, value: object) -> str:
    """`prefetch=8.5`: an argument as its caller wrote it, in one short line."""
    return f"{name}={shorten_text(repr(value), _MAX_VALUE_CHARS)}"


def convert_whole_number(value: object) -> int | None:
    """A whole number of Python's or NumPy's as an int; None for anything else, such as True, 8.0 and "8"."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several numbers has the method, too
        return None


def parse_whole_number(name: str, value: object, least: int, most: int = MAX_NUMBER, *, or_else: str = "") -> int:
    """A whole number within its bounds. `or_else` says what may stand in its place. Raises ConfigError."""
    number = convert_whole_number(value)
    if number is None or not least <= number <= most:
        is_short = most == MAX_NUMBER and (number is None or number < least)
        bounds = f"of at least {least}" if is_short else f"from {least} to {most}"
        raise ConfigError(f"{format_argument(name, value)}: write a whole number {bounds}{or_else}")
    return number


def parse_optional_number(
    name: str, value: object, least: int, most: int = MAX_NUMBER, *, otherwise: str
) -> int | None:
    """A whole number within its bounds, or None, which means what `otherwise` says. Raises ConfigError."""
    if value is None:
        return None
    return parse_whole_number(name, value, least, most, or_else=f", or None {otherwise}")


def parse_word(name: str, value: object, words: tuple[Word, ...], *, or_else: str = "") -> Word:
    """One of `words`. Raises ConfigError, with the nearest of them."""
    for word in words:
        if isinstance(value, str) and value == word:
            return word
    near = suggest_name(value, words) if isinstance(value, str) else ""
    allowed = " or ".join(f'"{word}"' for word in words)
    raise ConfigError(f"{format_argument(name, value)}: write {allowed}{or_else}{near}")


def parse_stream_name(value: object) -> str:
    """The name of a stream, which may be unknown. Raises ConfigError for anything but text."""
    if isinstance(value, str):
        return str(value)
    raise ConfigError(f'{format_argument("stream", value)}: write the name of one stream as text, such as "train"')


def parse_sample_ids(values: Iterable[object]) -> list[int]:
    """Sample ids as ints. Raises ConfigError for what is no whole number."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{format_argument('sample_ids', values)}: {_SAMPLE_IDS_REMEDY}")
    ids: list[int] = []
    for value in values:
        number = convert_whole_number(value)
        if number is None or abs(number) > MAX_NUMBER:
            raise ConfigError(
                f"sample_ids: {shorten_text(repr(value), _MAX_VALUE_CHARS)} is not a sample id; {_SAMPLE_IDS_REMEDY}"
            )
        ids.append(number)
    return ids


def parse_timeout(value: object) -> float:
    """Seconds to wait for an answer; the default for None. Raises ConfigError."""
    if value is None:
        return CONNECT_TIMEOUT_S
    seconds = _convert_seconds(value)
    if seconds is None or not 0 < seconds < math.inf:
        raise ConfigError(
            f"{format_argument('timeout', value)}: write a finite number of seconds above 0, such as timeout=60, or "
            f"None for {CONNECT_TIMEOUT_S:g}"
        )
    return min(seconds, _MAX_TIMEOUT_S)


def parse_patience(value: object) -> float | None:
    """Seconds to wait for a daemon that went away; None for ever, which infinity means, too. Raises ConfigError."""
    if value is None:
        return None
    seconds = _convert_seconds(value)
    if seconds is None or not seconds >= 0:  # `not >=` refuses NaN
        raise ConfigError(
            f"{format_argument('patience', value)}: write a number of seconds, 0 or more, such as patience=60, or None "
            "to wait for ever"
        )
    return None if seconds == math.inf else seconds


def _convert_seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_trainer_name(name: str | None) -> str:
    """Returns the name to subscribe with: `name`, or the program's if None. Raises ConfigError for an invalid name."""
    if name is None:
        return shorten_text(find_program_name(sys.argv), MAX_TRAINER_NAME_CHARS)
    if not isinstance(name, str):
        raise ConfigError(f'name {name!r}: write text such as name="lr-0.01", or None for the program\'s name')
    if not name.strip() or not name.isprintable() or len(name) > MAX_TRAINER_NAME_CHARS:
        raise ConfigError(
            f"name {name!r}: write 1 to {MAX_TRAINER_NAME_CHARS} printable characters; tables have no room for more"
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


# --- Parses the arguments of `subscribe` and `batch`; a mistake is a ConfigError that says what to write.


Start = Literal["begin", "live"] | Mapping[str, SupportsIndex]

_MAX_BATCH_NUMBER: Final = MAX_NUMBER - 1  # a subscription that looks at one batch has one epoch more than its number


def parse_start_option(start: Start, *, is_resuming: bool) -> tuple[bool, int]:
    """Returns whether to start where the other sessions are, and how many sessions to wait for. Raises ConfigError."""
    match start:
        case "begin":
            return False, 0
        case "live" if not is_resuming:
            return True, 0
        case "live":
            raise ConfigError(
                'start="live" joins where the others are, but resume continues where you stopped: choose one'
            )
        case {"together": count} if len(start) == 1:
            number = convert_whole_number(count)
            if number is not None and 1 <= number <= MAX_SESSIONS:
                return False, number
    raise ConfigError(
        f'{format_argument("start", start)}: use "begin", "live" (join where the others are) or {{"together": K}} '
        f"(begin when K trainers are there, at most {MAX_SESSIONS})"
    )


def parse_rank(rank: object, world: object) -> tuple[int, int]:
    """Returns the rank and its world. Raises ConfigError."""
    size = parse_whole_number("world", world, 1, MAX_WORLD)
    if isinstance(rank, str) and rank == "auto":
        return find_rank(os.environ, size, find_library_ranks(sys.modules))
    number = convert_whole_number(rank)
    if number is None:
        raise ConfigError(
            f'{format_argument("rank", rank)}: write a whole number, or "auto" for what torch.distributed, '
            "jax.distributed or the launcher of this process says"
        )
    if not 0 <= number < size:
        raise ConfigError(f"rank {number} of world {size} does not exist: ranks go from 0 to world - 1")
    return number, size


def parse_batch_number(name: str, value: object) -> int:
    """Returns an epoch or an index, which the stream need not have: it may be below 0. Raises ConfigError."""
    number = convert_whole_number(value)
    if number is None or number > _MAX_BATCH_NUMBER:
        bounds = "of at least 0" if number is None else f"from 0 to {_MAX_BATCH_NUMBER}"
        raise ConfigError(f"{format_argument(name, value)}: write a whole number {bounds}")
    return number


# --- What the client says on macOS and Windows, where it reaches daemons of other hosts alone.


def check_endpoint_system(endpoint: object) -> None:
    """Raises ConfigError if this system can have no daemon at an endpoint, None meaning the default one."""
    found = os.environ.get("STREAMD_ENDPOINT") if endpoint is None else endpoint
    # What daemons and their local trainers need, Linux has.
    if hasattr(os, "pidfd_open") or (isinstance(found, str) and is_remote(found)):
        return
    raise ConfigError(
        "daemons run on Linux alone, and from this system they are reached over TCP: "
        'streamd.connect("tcp://host:5555", curve={"secret": "me.key_secret", "server": "daemon.key"}), or set '
        "$STREAMD_ENDPOINT, $STREAMD_CURVE_SECRET and $STREAMD_CURVE_SERVER"
    )


def check_local_system() -> None:
    """Raises ConfigError if this system can run no private daemon."""
    if not hasattr(os, "pidfd_open"):
        raise ConfigError(
            "streamd.local starts a daemon, which needs Linux: run `streamd serve` on a Linux host, and connect to it "
            'with streamd.connect("tcp://host:5555", curve=...)'
        )
