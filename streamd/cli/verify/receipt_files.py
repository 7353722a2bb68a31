"""Reads receipts on paper: the files that ranks write, and the output of `streamd probe --json`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from streamd.core.host import read_regular_file
from streamd.core.rank_receipts import NamedReceipt
from streamd.core.receipt import Receipt
from streamd.errors import ConfigError
from streamd.limits import MAX_RECEIPT_FILE_BYTES


class _ProbeOutput(msgspec.Struct):
    """What `probe --json` prints, as far as it is read here."""

    receipts: list[Receipt]


_receipt: Final = msgspec.json.Decoder(Receipt)
_probe_output: Final = msgspec.json.Decoder(_ProbeOutput)


def read_receipts(path: Path) -> list[NamedReceipt]:
    """Reads the receipts in a file. Raises ConfigError if it has none, cannot be read, or holds something else."""
    try:
        data = read_regular_file(path, MAX_RECEIPT_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name the file of a rank's receipts") from error
    found = list(_decode_lines(path, data))
    if not found:
        raise ConfigError(f"{path}: no receipts; a rank writes one at the end of each epoch")
    return found


def _decode_lines(path: Path, data: bytes) -> Iterator[NamedReceipt]:
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            if b'"receipts"' in line:
                yield from (NamedReceipt(place, each) for each in _probe_output.decode(line).receipts)
            else:
                yield NamedReceipt(place, _receipt.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{place} is neither a receipt nor the output of  probe --json: {error}; name the files that the ranks "
                "wrote"
            ) from error
