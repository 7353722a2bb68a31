"""Draws docs/batch.png anew, which docs/first-steps.md shows: a batch of roads, as `streamd show` draws it.

scripts/docs pictures
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from scene_pictures import draw_masked_batch

import streamd
from streamd.cli.demo import write_driving_set
from streamd.decode.drawn_picture import draw_sheet

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "batch.png"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = write_driving_set(Path(folder), 240, 7, lambda _: None)
        train = {
            "source": {"kind": "table", "path": str(table), "image": "image"},
            "labels": {"angle": "float"},
            "image": {"size": [128, 128]},
            "batch_size": 12,
        }
        with streamd.local({"streams": {"train": train}}) as client:
            batch = client.batch("train", 0, 0)
            names = client.names("train", batch.sample_ids)
            sheet = draw_sheet(batch, dict(zip(batch.sample_ids.tolist(), names, strict=True)), len(batch))
    sheet.quantize(128).save(PICTURE, optimize=True)
    print(PICTURE)
    print(draw_masked_batch())


if __name__ == "__main__":
    main()
