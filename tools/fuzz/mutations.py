"""Changes bytes as damage and attackers do: bits, numbers, lengths, cuts, and parts of other inputs. Pure.

All choices come from the generator that is passed in, so a seed repeats a run.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

Edit = Callable[[Random, bytes], bytes]
Repair = Callable[[bytes], bytes]

MAX_CASE_BYTES: Final = 256 * 1024  # insertions would grow inputs without end; most parsers have limits below this
_MAX_EDITS: Final = 6
_MAX_RUN_BYTES: Final = 64  # inserted, removed or repeated at a time; larger runs come from splices
STRUCTURED_SHARE: Final = 0.5  # of the cases that begin with an edit within the format
_UNREPAIRED_SHARE: Final = 0.1  # of the cases whose checksums stay wrong, where the format has any
_WORDS: Final = tuple(struct.Struct(order + size) for size in "BHIQ" for order in "<>")
_DIGITS: Final = re.compile(rb"\d+")

# The bounds of every width, their neighbours, and what overflows in a product or a sum.
INTERESTING: Final = tuple(
    sorted(
        {0, 1, 2, 3, 4, 7, 8, 10, 16, 31, 32, 63, 64, 100, 127, 255, 256, 511, 512, 1000, 1024, 4095, 4096}
        | {(1 << power) + step for power in (7, 8, 15, 16, 24, 31, 32, 40, 53, 62, 63, 64) for step in (-1, 0, 1)}
    )
)


def mutate(
    rng: Random,
    data: bytes,
    other: bytes,
    edit: Edit | None = None,
    repair: Repair | None = None,
    *,
    edit_share: float = STRUCTURED_SHARE,
) -> bytes:
    """Returns `data` with a few changes; `other` is an input to take parts from.

    `edit` changes a value within the format, in `edit_share` of the cases; where that is 1, nothing else is changed.
    `repair` makes checksums right again, which most cases need to be read beyond them.
    """
    if edit is not None and edit_share == 1:
        for _ in range(1 + rng.randrange(_MAX_EDITS)):
            data = edit(rng, data)
        return data[:MAX_CASE_BYTES]
    is_edited = edit is not None and rng.random() < edit_share
    if edit is not None and is_edited:
        data = edit(rng, data)
    # Mostly one or two, so that most of the input stays sound and is read.
    for _ in range((0 if is_edited else 1) + (rng.getrandbits(3) & rng.getrandbits(3))):
        data = rng.choice(_EDITS)(rng, data, other)
    data = data[:MAX_CASE_BYTES]
    return data if repair is None or rng.random() < _UNREPAIRED_SHARE else repair(data)


def _flip_bit(rng: Random, data: bytes, _: bytes) -> bytes:
    if not data:
        return data
    at = _pick_place(rng, data)
    return _overwrite(data, at, bytes([data[at] ^ 1 << rng.randrange(8)]))


def _set_byte(rng: Random, data: bytes, _: bytes) -> bytes:
    return _overwrite(data, _pick_place(rng, data), bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))]))


def _set_number(rng: Random, data: bytes, _: bytes) -> bytes:
    word = rng.choice(_WORDS)
    return _overwrite(data, _pick_place(rng, data), word.pack(rng.choice(INTERESTING) % (1 << 8 * word.size)))


def _shift_number(rng: Random, data: bytes, _: bytes) -> bytes:
    """Adds a little to a number, as an error by one does."""
    word, at = rng.choice(_WORDS), _pick_place(rng, data)
    if at + word.size > len(data):
        return data
    (value,) = word.unpack_from(data, at)
    return _overwrite(data, at, word.pack((value + rng.randint(-16, 16)) % (1 << 8 * word.size)))


def _change_length(rng: Random, data: bytes, _: bytes) -> bytes:
    """Changes a number that may be a length or an offset: one that is not 0 and points into the data."""
    word, start = rng.choice(_WORDS[2:]), _pick_place(rng, data)
    for at in range(start, min(start + _MAX_RUN_BYTES, len(data) - word.size + 1)):
        (value,) = word.unpack_from(data, at)
        if 0 < value <= len(data):
            wrong = rng.choice((0, value - 1, value + 1, value * 2, len(data), len(data) + 1, rng.choice(INTERESTING)))
            return _overwrite(data, at, word.pack(wrong % (1 << 8 * word.size)))
    return data


def _change_digits(rng: Random, data: bytes, _: bytes) -> bytes:
    """Replaces a number that is written as text."""
    found = _DIGITS.search(data, _pick_place(rng, data)) or _DIGITS.search(data)
    if found is None:
        return data
    text = b"%s%d" % (rng.choice((b"", b"", b"-")), rng.choice(INTERESTING))
    # In a field of fixed width the digits behind it must stay where they are.
    text = text.zfill(len(found[0]))[-len(found[0]) :] if rng.random() < 0.5 else text  # noqa: PLR2004 - even odds
    return data[: found.start()] + text + data[found.end() :]


def _remove_run(rng: Random, data: bytes, _: bytes) -> bytes:
    at = _pick_place(rng, data)
    return data[:at] + data[at + 1 + rng.randrange(_MAX_RUN_BYTES) :]


def _repeat_run(rng: Random, data: bytes, _: bytes) -> bytes:
    at = _pick_place(rng, data)
    run = data[at : at + 1 + rng.randrange(_MAX_RUN_BYTES)]
    return data[:at] + run * rng.choice((2, 2, 3, 16, 256)) + data[at + len(run) :]


def _insert_bytes(rng: Random, data: bytes, _: bytes) -> bytes:
    at, count = _pick_place(rng, data), 1 + rng.randrange(_MAX_RUN_BYTES)
    return data[:at] + rng.choice((bytes(count), b"\xff" * count, rng.randbytes(count))) + data[at:]


def _truncate(rng: Random, data: bytes, _: bytes) -> bytes:
    return data[: _pick_place(rng, data)]


def _splice(rng: Random, data: bytes, other: bytes) -> bytes:
    """Returns the beginning of one input and the end of another."""
    return data[: _pick_place(rng, data)] + other[_pick_place(rng, other) :]


def _copy_part(rng: Random, data: bytes, other: bytes) -> bytes:
    """Writes a part of another input over this one, where both are equally far from their beginnings or anywhere."""
    start = _pick_place(rng, other)
    part = other[start : start + 1 + rng.randrange(_MAX_RUN_BYTES)]
    return _overwrite(data, start if start < len(data) and rng.random() < 0.5 else _pick_place(rng, data), part)  # noqa: PLR2004 - even odds


def _pick_place(rng: Random, data: bytes) -> int:
    """Returns a position in `data`. Beginnings are favoured, since they hold the headers."""
    if not data:
        return 0
    return rng.randrange(min(len(data), 128) if rng.getrandbits(1) else len(data))


def _overwrite(data: bytes, at: int, part: bytes) -> bytes:
    return data[:at] + part + data[at + len(part) :]


_EDITS: Final[Sequence[Callable[[Random, bytes, bytes], bytes]]] = (
    _flip_bit,
    _flip_bit,
    _set_byte,
    _set_number,
    _set_number,
    _shift_number,
    _change_length,
    _change_length,
    _change_digits,
    _remove_run,
    _repeat_run,
    _insert_bytes,
    _truncate,
    _splice,
    _copy_part,
)
