"""Faults of data, so many at once as a person mends in one go: the places of one kind, and those of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from streamd.dataset.manifest.types import LocationFormatter
from streamd.errors import ConfigError

SHOWN_FAULTS: Final = 10  # of one kind in a message


def format_other_locations(
    rows: Sequence[int], format_location: LocationFormatter, format_value: Callable[[int], str] | None = None
) -> str:
    """For a message that names the first of `rows`: ` (also line 7 'x', line 9 'y' and 3 more)`; nothing for one row.

    `format_value` says what stands in a row.
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
    """Collects errors of the data until all of them are known. Made by `raise_collected_faults`."""

    def __init__(self) -> None:
        self.errors: list[ConfigError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keeps the ConfigError of what is done inside, so that what comes next is looked at, too."""
        try:
            yield
        except ConfigError as error:
            self.errors.append(error)


@contextmanager
def raise_collected_faults() -> Iterator[FaultCollector]:
    """Raises, at the end, one ConfigError with a line for each that was collected, and for one that ended it early."""
    faults = FaultCollector()
    with faults.collect():
        yield faults
    if len(faults.errors) > 1:
        told = "\n".join(map(str, faults.errors))
        faults.errors.clear()
        raise ConfigError(told)
    # An error holds the frames that it passed; a frame that held it in turn would keep all of them, and what they have
    # open, until the garbage collector comes by.
    while faults.errors:
        raise faults.errors.pop()
