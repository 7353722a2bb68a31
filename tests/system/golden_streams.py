"""The golden digests of streams: what one worker makes of every kind of stream, over two epochs of made-up data.

    python tests/system/golden_streams.py    writes them to golden_streams.json: only after a change that is wanted

A digest is that of `streamd probe --digest`: order, ids, weights, labels, pixels. The pictures are copies of some of
the decoders' golden files, since another encoder would write other bytes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
DIGESTS: Final = HERE / "golden_streams.json"
PICTURES: Final = HERE.parent / "decode" / "golden"
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))

from support.daemon_process import DaemonProcess  # noqa: E402 - its folder is on the path only now, when this runs as a command

from streamd.cli import probe  # noqa: E402 - as above
from streamd.client import Batch, Stream  # noqa: E402 - as above

EPOCHS: Final = 2
BATCH: Final = 12
KINDS: Final = (
    "baseline.jpg", "progressive.jpg", "large.jpg", "orientation-6.jpg", "grey.jpg", "cmyk.jpg", "rgba.png",
    "palette.png", "sixteen-bits.png", "lossy.webp", "rgb.bmp", "rgb-lzw.tif",
)  # fmt: skip
SAMPLES: Final = 149  # twelve batches and five samples
ALL_BAD: Final = range(24, 36)  # one whole batch of those that keep the stored order
BAD: Final = frozenset([7, 60, 61, 148, *ALL_BAD])
LABELS: Final = {
    "kind": "category",
    "turn": "int",
    "angle": "float",
    "box": {"from": ["left", "top"], "type": "float"},
    "name": "string",
    "marks": "tags",
}
SOURCE: Final = {"kind": "table", "image": "path"}
TABLE: Final = {"labels": LABELS, "image": {"size": [19, 13]}}
CHUNKS: Final = {"kind": "chunk", "seed": 14, "chunk": 10, "buffer": 4}  # the last of them is short
FOLDER: Final = {"image": {"size": [17, 23], "mode": "L", "resize": "crop"}}

Digests = dict[str, list[str]]  # of each stream, one an epoch


def write_data(place: Path, numbers: Iterable[int] = range(SAMPLES)) -> Path:
    """The samples, made in the order of `numbers`, and the table of them, in a new folder `place`."""
    for number in numbers:
        path = place / "images" / file_name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = (PICTURES / KINDS[number % len(KINDS)]).read_bytes()
        path.write_bytes(stored[:3] + bytes(len(stored) - 3) if number in BAD else stored)
    with (place / "all.csv").open("w", encoding="utf-8", newline="") as table:
        rows = csv.DictWriter(table, ["path", "kind", "turn", "angle", "left", "top", "name", "marks"])
        rows.writeheader()
        rows.writerows(_row(number) for number in range(SAMPLES))
    return place


def file_name_of(number: int) -> str:
    kind = KINDS[number % len(KINDS)]
    return f"class-{number % 5}/{number * 67 % SAMPLES:03}-{kind}"


def _row(number: int) -> dict[str, object]:
    return {
        "path": file_name_of(number),
        "kind": KINDS[number % len(KINDS)],
        "turn": number * 7919 % 360 - 180,
        "angle": f"{number * 37 % 101 / 8:.3f}",
        "left": f"{number / 4:.2f}",
        "top": -number,
        "name": f"straße {number}" if number % 3 else "",
        "marks": "|".join(mark for place, mark in enumerate(("day", "rain", "city")) if number >> place & 1),
    }


def streams(place: Path) -> dict[str, dict[str, Any]]:
    """Every shuffle, remainder and policy over the data in `place`, from a table and from its folders.

    Random crops are in stored order: nothing but what is drawn makes their epochs differ.
    """
    table = {**TABLE, "source": {**SOURCE, "path": str(place / "all.csv"), "root": str(place / "images")}}
    folder = {**FOLDER, "source": {"kind": "folder", "path": str(place / "images")}}
    crops = {**folder, "image": {"size": [17, 23], "resize": "random_crop", "scale": [0.3, 1]}}
    return {
        "full-keep-substitute": _stream(table, "substitute", False, {"kind": "full", "seed": 11}),
        "full-drop-mask": _stream(table, "mask", True, {"kind": "full", "seed": 12}),
        "chunk-keep-substitute": _stream(table, "substitute", False, CHUNKS),
        "none-pad-substitute": _stream(table, "substitute", "pad", "none"),
        "none-keep-mask": _stream(table, "mask", False, "none"),
        "folder-pad-substitute": _stream(folder, "substitute", "pad", {"kind": "full", "seed": 13}),
        "crops-keep-substitute": _stream(crops, "substitute", False, {"kind": "none", "seed": 14}),
    }


def _stream(basis: dict[str, Any], policy: str, drop: bool | str, shuffle: object) -> dict[str, Any]:
    bad = {"policy": policy, "max_fraction": 1.0}
    return {**basis, "batch_size": BATCH, "drop_remainder": drop, "shuffle": shuffle, "bad_samples": bad}


def digest_daemon(endpoint: str) -> Digests:
    """The digests of every stream, by one trainer after the other."""
    return {name: digest_stream(name, endpoint) for name in streams(Path())}


def digest_stream(name: str, endpoint: str) -> list[str]:
    drained = probe.drain_stream(name, endpoint, EPOCHS, digest=True)
    assert all(receipt.ok for receipt in drained.receipts)
    return drained.digest


def digest_batches(stream: Stream, met: Callable[[Iterable[Batch]], Iterable[Batch]] = iter) -> list[str]:
    """The same of a subscription; `met` sees each epoch's batches, and says what is digested."""
    digests = [_digest_epoch(met(epoch)) for epoch in stream.epochs()]
    assert all(receipt.ok and receipt.complete for receipt in stream.receipts)
    return digests


def _digest_epoch(batches: Iterable[Batch]) -> str:
    summing = hashlib.blake2b(digest_size=16)
    for batch in batches:
        probe.add_batch_to_digest(summing, batch)
    return summing.hexdigest()


def read_golden_digests() -> Digests:
    """The digests that were written down."""
    digests: Digests = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return digests


def _digest_with_one_worker() -> Digests:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with DaemonProcess(place, {"workers": 1, "streams": streams(write_data(place / "data"))}) as daemon:
            return digest_daemon(daemon.endpoint)


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps(_digest_with_one_worker(), indent=1) + "\n", encoding="utf-8")
