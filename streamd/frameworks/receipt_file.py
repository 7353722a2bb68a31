"""The receipts of one rank in a file of one line each, `receipts-RANK.jsonl`, which `streamd verify` adds up.

A training that is killed and continued may write an epoch's receipt twice, and never loses one if it writes the receipt
before it saves a state from which the next epoch follows. ResumeCallback does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from streamd.core.host import check_regular_file
from streamd.core.receipt import Receipt


def receipt_file_path(folder: Path, rank: int) -> Path:
    """Returns the path of a rank's receipts in the folder of its saved states."""
    return folder / f"receipts-{rank}.jsonl"


class ReceiptFile:
    """Appends the receipts of a stream to a file, each once, except for the first `known` of the stream's receipts."""

    def __init__(self, path: Path, known: int = 0) -> None:
        self.path = path
        self.written = known

    def append_new_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Appends those of a stream's `receipts` that were not written yet, durably. Raises OSError."""
        if new := receipts[self.written :]:
            check_regular_file(self.path)
            with self.path.open("ab+") as file:
                # A process that was killed, or found the disk full, may have left a part of a line. No reader could
                # use it.
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                if size and file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read(size).rfind(b"\n") + 1)
                file.write("".join(f"{each.to_json()}\n" for each in new).encode())
                file.flush()
                os.fsync(file.fileno())
            self.written += len(new)
