"""What a worker that inspects counts of masks in files and in arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.array_records import MASKS, build_array_stream
from support.faulty_data import inspected
from support.masked_photos import build_mask, folder_config, save_palette_png, write_masked_photos
from support.record_readers import open_records

from streamd.ipc.worker_messages import ClassPixels, GroupResult, SizeExample


def read_records(place: Path, config: dict[str, Any], counted: list[int]) -> GroupResult:
    """What is seen of six samples."""
    place.mkdir()
    with open_records(config, place) as reader:
        return inspected(reader, range(6), counted)


def count_numbers(masks: list[Any]) -> dict[int, int]:
    numbers, counts = np.unique(np.stack(masks), return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def test_masks_in_files_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    folder = write_masked_photos(tmp_path / "data")
    save_palette_png(folder / "masks" / "4.png", build_mask(4, 80, 60))
    seen = read_records(tmp_path / "state", folder_config(folder), [1, 2])
    assert seen.faults == []
    assert seen.class_pixels == {"mask": ClassPixels(2, count_numbers([build_mask(1), build_mask(2)]))}
    assert seen.odd_sizes["mask"].skewed_example == SizeExample(4, (80, 60), (60, 80))


def test_sizes_of_images_with_views_come_from_their_headers(tmp_path: Path) -> None:
    folder = write_masked_photos(tmp_path / "data")
    save_palette_png(folder / "masks" / "4.png", build_mask(4, 80, 60))
    config = folder_config(folder)
    config["images"]["photo"] = config["images"]["photo"] | {"views": 2}
    seen = read_records(tmp_path / "state", config, [])
    assert (seen.odd_sizes["mask"].skewed, seen.class_pixels) == (1, {})


@pytest.mark.parametrize("kind", ["npy", "hdf5 compressed", "lmdb"])
def test_masks_in_arrays_are_counted_as_they_are_stored(tmp_path: Path, kind: str) -> None:
    images = {"photo": {"size": [20, 30], "resize": "random_crop"}, "mask": {"like": "photo", "mode": "index"}}
    config = build_array_stream(tmp_path / "data", kind, images)
    seen = read_records(tmp_path / "state", config, [0, 5])
    assert seen.class_pixels == {"mask": ClassPixels(2, count_numbers([MASKS[0], MASKS[5]]))}
    assert seen.odd_sizes["mask"].scaled == 6
