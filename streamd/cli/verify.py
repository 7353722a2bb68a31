"""Receipts on paper: reads the files that ranks write, and the output of `probe --json`; writes what they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from streamd.core.host import read_regular_file
from streamd.core.rank_receipts import EpochSum, NamedReceipt
from streamd.core.receipt import Receipt
from streamd.errors import ConfigError
from streamd.limits import MAX_RECEIPT_FILE_BYTES

_MAX_LISTED_BATCHES: Final = 10_000  # of each kind, in JSON


class _ProbeOutput(msgspec.Struct):
    """What `probe --json` prints, as far as it is read here."""

    receipts: list[Receipt]


_receipt_decoder: Final = msgspec.json.Decoder(Receipt)
_output_decoder: Final = msgspec.json.Decoder(_ProbeOutput)


def read_receipts(path: Path) -> list[NamedReceipt]:
    """Reads the receipts in a file. Raises ConfigError if it has none, cannot be read, or holds something else."""
    try:
        data = read_regular_file(path, MAX_RECEIPT_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name the file of a rank's receipts") from error
    found: list[NamedReceipt] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            if b'"receipts"' in line:
                found += [NamedReceipt(place, each) for each in _output_decoder.decode(line).receipts]
            else:
                found.append(NamedReceipt(place, _receipt_decoder.decode(line)))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{place} is neither a receipt nor the output of  probe --json: {error}; name the files that the ranks "
                "wrote"
            ) from error
    if not found:
        raise ConfigError(f"{path}: no receipts; a rank writes one at the end of each epoch")
    return found


def build_epoch_report(found: EpochSum) -> dict[str, Any]:
    """Returns an epoch as plain data; the longest lists of batches are cut."""
    batches = {"missing": found.missing, "twice": found.twice, "dropped": found.dropped}
    return {
        "stream": found.stream,
        "epoch": found.epoch,
        "ok": found.is_one_epoch,
        "order_id": found.order_id,
        "batches": found.batches,
        "receipts": found.receipts,
        **{name: each[:_MAX_LISTED_BATCHES].tolist() for name, each in batches.items()},
        "different": found.different,
        "by_token": found.by_token,
        "digest": found.digest,
        "pixel_ids": found.pixel_ids,
        "changed": found.changed,
        "remarks": found.remarks,
    }
