"""`streamd verify`: adds up the receipts of all ranks of a job, and says whether they are one epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from streamd.cli.options import JsonOption
from streamd.core.text import escape_unprintable

if TYPE_CHECKING:
    from streamd.core.rank_receipts import EpochSum

_MAX_LISTED_BATCHES: Final = 10_000  # of each kind, in JSON


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

    Names the batches that are missing, that came twice, and those for which the files differ, and ranks that saw other
    pixels. A rank that continued from a token has in its receipt what all ranks had done until then: such parts are
    listed as "by token". Steps that the job repeated, since it continued at an earlier token, count once. Receipts that
    say `changed`, and those of versions without the identity of the pixels, are noted.

    The exit status is 0 if every epoch is one epoch exactly, 1 if not, and 2 if a file cannot be read, or a receipt in
    it has numbers that contradict each other.

    \b
    Example:
      streamd verify run-*/receipts-*.jsonl
    """
    from streamd.cli.verify.receipt_files import read_receipts  # noqa: PLC0415 - NumPy only when it is needed
    from streamd.core.rank_receipts import add_up_receipts  # noqa: PLC0415 - as above

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
        "pixel_ids": found.pixel_ids,
        "changed": found.changed,
        "remarks": found.remarks,
    }
