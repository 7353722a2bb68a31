"""How far a pack has come: one small file, replaced whole each time that what it says is safe on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from streamd.errors import PackError
from streamd.manifest import sync_folder
from streamd.pack.sums import Tally

_VERSION: Final = 1


class Bad(msgspec.Struct, frozen=True):
    """A sample that was left out, and why."""

    sample_id: int
    file: str
    reason: str


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The first `done` samples of the order were seen: `tally.rows` are written, `bad` left out.

    `identity` names what is packed and how; a journal of another one is no beginning of it. `place` is what the writer
    wants to know again.
    """

    version: int = _VERSION
    identity: str
    samples: int
    batch_rows: int
    done: int = 0
    tally: Tally = Tally()
    bad: tuple[Bad, ...] = ()
    place: dict[str, int] = {}


_journal: Final = msgspec.json.Decoder(Journal)


def read(path: Path) -> Journal | None:
    """The journal at `path`, None if there is none. Raises PackError for one that cannot be used."""
    try:
        found = _journal.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise PackError(
            f"{path}: the journal of a pack that was begun cannot be read: {error}; add --restart"
        ) from error
    if found.version != _VERSION:
        raise PackError(f"{path}: another streamd began this pack; go on with that one, or add --restart")
    return found


def write(path: Path, journal: Journal) -> None:
    """Returns when it is safe on the disk. Raises OSError."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)
