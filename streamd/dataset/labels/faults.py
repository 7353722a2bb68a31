"""Collects faults of data, so that one message has as many as a person corrects in one go; warns of equal classes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from streamd.dataset.manifest.types import LocationFormatter
from streamd.errors import ConfigError

_log: Final = logging.getLogger("streamd.sources")
SHOWN_FAULTS: Final = 10  # of one kind in a message


def format_other_locations(
    rows: Sequence[int], format_location: LocationFormatter, format_value: Callable[[int], str] | None = None
) -> str:
    """Formats all `rows` but the first, which the message names: ` (also line 7 'x', line 9 'y' and 3 more)`.

    Returns an empty text for one row. `format_value` formats what is in a row.
    """
    if len(rows) <= 1:
        return ""
    shared = format_location(rows[0]).rpartition(", ")
    prefix = f"{shared[0]}{shared[1]}"
    shown = [
        f"{format_location(row).removeprefix(prefix)}{f' {format_value(row)}' if format_value else ''}"
        for row in rows[1:SHOWN_FAULTS]
    ]
    more = f" and {len(rows) - SHOWN_FAULTS:,} more" if len(rows) > SHOWN_FAULTS else ""
    return f" (also {', '.join(shown)}{more})"


class FaultCollector:
    """Collects errors of the data until all of them are known. Created by `raise_collected_faults`."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keeps a ConfigError of the code inside, so that the code after it still runs."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(error)


@contextmanager
def raise_collected_faults() -> Iterator[FaultCollector]:
    """Raises one ConfigError at the end, with a line for each collected error.

    An error that ends the block early is one of them.
    """
    faults = FaultCollector()
    with faults.collect():
        yield faults
    if len(faults.errors) > 1:
        messages = "\n".join(map(str, faults.errors))
        faults.errors.clear()
        raise ConfigError(messages)
    # An error refers to the frames that it passed. If this frame referred to the error in turn, all of them, and the
    # files that they have open, would stay until the next garbage collection.
    while faults.errors:
        raise faults.errors.pop()


def warn_of_equal_classes(where: str, what: str, names: Sequence[int | str], numbers: Iterable[object]) -> None:
    """Warns of classes with the same name; `numbers` are what the data call each, and `what` these are."""
    same: dict[int | str, list[object]] = {}
    for name, number in zip(names, numbers, strict=True):
        same.setdefault(name, []).append(number)
    for name, several in same.items():
        if len(several) > 1:
            _log.warning(
                "%s: %s %s have the same name %r, and are learned as %d classes; give each a name of its own, or "
                "use one of them for all",
                where,
                what,
                " and ".join(map(repr, several)),
                name,
                len(several),
            )
