"""`streamd verify`: adds up the receipts of all ranks of a job, and says whether they are one epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from streamd.cli.terminal.options import JsonOption
from streamd.core.rank_receipts import EpochSum, NamedReceipt, add_up_receipts
from streamd.core.receipt import Receipt
from streamd.core.text import escape_unprintable
from streamd.errors import ConfigError
from streamd.limits import MAX_RECEIPT_FILE_BYTES

_MAX_LISTED_BATCHES: Final = 10_000  # of each kind, in JSON


class _ProbeOutput(msgspec.Struct):
    """What `probe --json` prints, as far as it is read here."""

    receipts: list[Receipt]


_receipt: Final = msgspec.json.Decoder(Receipt)
_probe_output: Final = msgspec.json.Decoder(_ProbeOutput)


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Receipts of all ranks: receipts-RANK.jsonl, or output of probe --json."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Checks that the receipts of all ranks add up to one epoch, each batch once, whatever their hosts and worlds were.

    Give the files of all ranks: those that ResumeCallback and `streamd-train --resume DIR` write as
    DIR/receipts-RANK.jsonl, one line for each receipt.to_json(), or the output of `streamd probe --json`. Each epoch in
    them is added up. The same steps in several files count once, and their digests are computed again from the plan.

    Names the batches that are missing, that came twice, and those for which the files differ. A rank that continued
    from a token has in its receipt what all ranks had done until then: such parts are listed as "by token". Steps that
    the job repeated, since it continued at an earlier token, count once.

    The exit status is 0 if every epoch is one epoch exactly, 1 if not, and 2 if a file cannot be read.

    \b
    Example:
      streamd verify run-*/receipts-*.jsonl
    """
    sums = add_up_receipts([each for file in files for each in read_receipts(file)])
    if json:
        typer.echo(
            msgspec.json.encode({"ok": all(each.is_one_epoch for each in sums), "epochs": list(map(_to_plain, sums))})
        )
    else:
        for each in sums:
            for line in each.format_lines():
                typer.echo(escape_unprintable(line))
    raise typer.Exit(0 if all(each.is_one_epoch for each in sums) else 1)


def read_receipts(path: Path) -> list[NamedReceipt]:
    """Reads the receipts in a file. Raises ConfigError if it has none, cannot be read, or holds something else."""
    try:
        if path.stat().st_size > MAX_RECEIPT_FILE_BYTES:
            raise ConfigError(f"{path}: more than {MAX_RECEIPT_FILE_BYTES:,} bytes, which receipts never have")
        data = path.read_bytes()
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


def _to_plain(found: EpochSum) -> dict[str, Any]:
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
    }
