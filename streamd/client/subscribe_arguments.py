"""Parses the arguments of `subscribe` and `batch`; a mistake is a ConfigError that says what to write."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, Literal, SupportsIndex

from streamd.client.arguments import (
    MAX_NUMBER,
    convert_whole_number,
    format_argument,
    parse_optional_number,
    parse_whole_number,
    parse_word,
)
from streamd.client.ranks import find_library_ranks, find_rank
from streamd.core.spec import UnevenPolicy
from streamd.errors import ConfigError
from streamd.limits import MAX_CREDIT, MAX_SESSIONS, MAX_WORLD, MIN_CREDIT

Start = Literal["begin", "live"] | Mapping[str, SupportsIndex]

_MAX_BATCH_NUMBER: Final = MAX_NUMBER - 1  # a subscription that looks at one batch has one epoch more than its number
_UNEVEN_POLICIES: Final[tuple[UnevenPolicy, ...]] = ("drop", "pad")


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


def parse_counts(
    epochs: object, prefetch: object, batch_size: object, usual_credit: int
) -> tuple[int | None, int, int | None]:
    """Returns the epochs in total, the credit and the batch size; None if left out. Raises ConfigError."""
    credit = parse_optional_number("prefetch", prefetch, MIN_CREDIT, MAX_CREDIT, otherwise=f"for {usual_credit}")
    return (
        parse_optional_number("epochs", epochs, 1, otherwise="to run without end"),
        usual_credit if credit is None else credit,
        parse_optional_number("batch_size", batch_size, 1, otherwise="for the stream's own batch_size"),
    )


def parse_uneven(uneven: object) -> UnevenPolicy | None:
    """Returns the rule for what not every rank would get, or None. Raises ConfigError."""
    if uneven is None:
        return None
    return parse_word("uneven", uneven, _UNEVEN_POLICIES, or_else=", or None for the stream's own rule")


def parse_batch_number(name: str, value: object) -> int:
    """Returns an epoch or an index, which the stream need not have: it may be below 0. Raises ConfigError."""
    number = convert_whole_number(value)
    if number is None or number > _MAX_BATCH_NUMBER:
        bounds = "of at least 0" if number is None else f"from 0 to {_MAX_BATCH_NUMBER}"
        raise ConfigError(f"{format_argument(name, value)}: write a whole number {bounds}")
    return number
