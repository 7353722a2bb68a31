"""Views: each picture is read and decoded once for all of them, and each view shows a part of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_rows import Filled, opened
from support.masked_photos import PHOTO, folder_config, write_masked_photos
from support.record_readers import open_records
from support.served_folder import serve
from support.transform_programs import Write
from test_worker_sample_files import arrays, reading

from streamd.core.sampler import PAD_ID
from streamd.core.spec import ImageSpec
from streamd.dataset.transform_source import find_transform_source
from streamd.decode import pillow
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.worker_messages import OpenStream
from streamd.worker.stream_reader import open_reader

IMAGE = {"size": [24, 32], "resize": "random_crop"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_masked_photos(tmp_path / "data")


def test_the_first_view_shows_what_an_image_without_views_shows(folder: Path, tmp_path: Path) -> None:
    config: dict[str, Any] = {"source": {"kind": "folder", "path": str(folder / "photos")}, "labels": {}}
    with (
        opened(folder / "photos", tmp_path / "one", labels={}, image=IMAGE) as plain,
        reading(config | {"image": {**IMAGE, "views": 3}}, tmp_path / "three") as several,
    ):
        one, three = Filled(plain, [4, PAD_ID, 2], epoch=3), Filled(several, [4, PAD_ID, 2], epoch=3)
        assert three.images.shape == (8, 3, 24, 32, 3)
        assert np.array_equal(three.images[[0, 1, 2], 0], one.images[[0, 1, 2]])
        assert not three.images[1].any()
        for row in (0, 2):
            assert len({view.tobytes() for view in three.images[row]}) == 3
        assert np.array_equal(Filled(several, [2], epoch=3).images[0], three.images[2])
        assert not np.array_equal(Filled(several, [2], epoch=4).images[0], three.images[2])
        assert several.pixel_id != plain.pixel_id


def test_a_picture_is_decoded_once_for_all_of_its_views(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    load = pillow.load_upright_with_pillow

    def count(data: bytes, *how: Any) -> Any:
        decoded.append(len(data))
        return load(data, *how)

    monkeypatch.setattr(pillow, "load_upright_with_pillow", count)
    with opened(folder / "photos", tmp_path / "state", labels={}, image={**IMAGE, "views": 4}) as reader:
        assert Filled(reader, [0, 1, 5]).bad == []
    assert len(decoded) == 3


def test_a_mask_follows_each_view_of_its_photo(folder: Path, tmp_path: Path) -> None:
    stream = folder_config(folder)
    stream["images"] = {"photo": {**PHOTO, "views": 2}, "mask": stream["images"]["mask"]}
    with reading(stream, tmp_path / "both") as several, reading(folder_config(folder), tmp_path / "one") as plain:
        found, alone = arrays(Filled(several, [3, 1])), arrays(Filled(plain, [3, 1]))
        assert found["mask"].shape == (8, 2, 24, 32)
        assert np.array_equal(found["mask"][:2, 0], alone["mask"][:2])
        assert np.array_equal(found["photo"][:2, 0], alone["photo"][:2])
        assert not np.array_equal(found["mask"][0, 0], found["mask"][0, 1])


def test_views_count_in_the_identity_of_pixels_only_where_they_are_given() -> None:
    plain = ImageSpec(8, 8, 3, "random_crop")
    ids = {compute_pixel_id(ImageSpec(8, 8, 3, "random_crop", views=views)) for views in (0, 1, 2)}
    assert len(ids) == 3
    assert "views" not in plain.describe_pixels()
    assert ImageSpec(8, 8, 3, views=2).row_bytes == 2 * plain.row_bytes


def test_one_bad_picture_makes_all_of_its_views_bad(folder: Path, tmp_path: Path) -> None:
    with opened(folder / "photos", tmp_path / "state", labels={}, image={**IMAGE, "views": 2}) as reader:
        (folder / "photos" / "1.png").write_bytes(b"stale")
        assert [row.sample_id for row in Filled(reader, [0, 1, 2]).bad] == [1]


def test_a_transform_receives_all_views_of_a_sample_as_one_array(folder: Path, tmp_path: Path, program: Write) -> None:
    text = "def mark(image, labels, rng):\n    image[1] = len(image)\n    return image, labels\n"
    place = find_transform_source("marking:mark", program("marking", text).parent)
    stream = serve(folder / "photos", tmp_path / "state", labels={}, image={**IMAGE, "views": 3})
    reader, _ = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, None, place))
    batch = Filled(reader, [2, 3])
    assert (batch.images[:2, 1] == 3).all()
    assert np.array_equal(batch.images[:2, [0, 2]], batch.plain[:2, [0, 2]])
    reader.close()
    stream.manifest.close()


def test_a_cache_keeps_views_that_a_transform_tells_apart(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "augment.py").write_text(
        "def shade(image, labels, rng):\n    return image + rng.integers(0, 9, (3, 1, 1, 1)).astype('uint8'), labels\n"
    )
    config = {"source": {"kind": "folder", "path": str(folder / "photos")}, "labels": {}, "batch_size": 3}
    config |= {"image": {"size": [24, 32], "views": 3}, "transform": "augment:shade", "cache": {"path": "kept"}}
    with open_records(config, tmp_path) as reader:
        first = Filled(reader, [0, 3, 5])
        assert reader.cache is not None
        reader.cache.publish_rows()
        again = Filled(reader, [0, 3, 5])
        assert again.filling.count_of_gathered_rows == 3
        assert np.array_equal(first.images[:3], again.images[:3])
        assert len({view.tobytes() for view in again.plain[0]}) == 1
