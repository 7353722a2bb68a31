"""Rows and labels after a transform: they depend on sample and epoch alone, and the cache is filled before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from filled_rows import Filled, Unfilled
from support.daemon_process import write_images
from support.masked_photos import folder_config, write_masked_photos
from support.opened_streams import holding
from support.record_readers import open_records
from support.served_folder import serve, spoil
from support.transform_programs import DRAWN, FLIP, Write

from streamd.core.sampler import PAD_ID
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.transform_source import find_transform_source
from streamd.ipc.slots import RowProgress, WorkerPhase
from streamd.ipc.worker_messages import CachePlace, OpenStream
from streamd.worker.stream_reader import StreamReader, open_reader
from streamd.worker.transforms import StreamTransform, UnfitTransformError

Open = Callable[..., StreamReader]
Pixels = npt.NDArray[np.uint8]
SAMPLES = 8


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStream]:
    """Images with a steering angle each: sample k's is k + 1."""
    folder = write_images(tmp_path / "data", {"a": SAMPLES})
    rows = "".join(f"a/{number:04}.jpg,{number + 1}\n" for number in range(SAMPLES))
    (tmp_path / "all.csv").write_text(f"file,angle\n{rows}")
    table = {"kind": "table", "path": str(tmp_path / "all.csv"), "image": "file", "root": str(folder)}
    stream = serve(folder, tmp_path / "state", source=table, labels={"angle": "float"})
    yield stream
    stream.manifest.close()


@pytest.fixture
def open_with(served: ServedStream, program: Write) -> Iterator[Open]:
    """The stream as a worker has it open, with a transform."""
    sources: list[StreamReader] = []

    def open_it(text: str, function: str, cache: CachePlace | None = None) -> StreamReader:
        name = f"module{len(sources)}"
        place = find_transform_source(f"{name}:{function}", program(name, text).parent)
        source, _ = open_reader(OpenStream(0, str(served.manifest_path), served.spec, cache, place))
        sources.append(source)
        return source

    yield open_it
    for source in sources:
        source.close()


def test_a_flipped_image_has_its_angle_negated_and_others_stay(open_with: Open) -> None:
    batch = Filled(open_with(FLIP, "flip"), list(range(SAMPLES)))
    flipped = [not np.array_equal(*pair) for pair in zip(batch.images, batch.plain, strict=True)]
    assert 0 < sum(flipped) < SAMPLES
    for sample_id, turned in enumerate(flipped):
        expected = batch.plain[sample_id, :, ::-1] if turned else batch.plain[sample_id]
        assert np.array_equal(batch.images[sample_id], expected)
        assert batch.labels("angle")[sample_id] == (-1 if turned else 1) * (sample_id + 1)


def test_random_numbers_depend_on_sample_and_epoch_and_not_on_the_task(open_with: Open) -> None:
    source = open_with(DRAWN, "draw")
    whole = Filled(source, list(range(SAMPLES))).images
    assert len({row.tobytes() for row in whole}) == SAMPLES
    for ids in ([4], [7, 4], [PAD_ID, 0, 4]):
        assert np.array_equal(Filled(source, ids).images[ids.index(4)], whole[4])
    assert not np.array_equal(Filled(source, [4], epoch=1).images[0], whole[4])


def test_two_workers_transform_a_sample_alike(open_with: Open) -> None:
    first, second = open_with(DRAWN, "draw"), open_with(DRAWN, "draw")
    assert np.array_equal(Filled(first, [3, 5], epoch=2).images, Filled(second, [3, 5], epoch=2).images)


def test_padding_and_bad_samples_are_not_transformed(open_with: Open, served: ServedStream) -> None:
    spoil(served, 2)
    text = "def f(image, labels, rng):\n    return image | 1, {'angle': labels['angle'] + 100}"
    batch = Filled(open_with(text, "f"), [1, PAD_ID, 2, 3])
    assert (batch.labels("angle")[:4].tolist(), batch.weights[:4].tolist()) == ([102, 0, 3, 104], [1, 0, 1, 1])
    assert not batch.images[1].any()
    assert [bad.sample_id for bad in batch.bad] == [2]


def test_a_sample_whose_transform_raises_is_lastingly_bad(open_with: Open) -> None:
    text = """
        def check(image, labels, rng):
            if labels["angle"] == 4:
                raise ValueError("no such angle")
            return 255 - image, labels
        """
    batch = Filled(open_with(text, "check"), [2, 3, 4])
    (bad,) = batch.bad
    assert (bad.sample_id, bad.lasting) == (3, True)
    assert bad.reason == "transform raised ValueError at module0.py:4: no such angle"
    assert np.array_equal(batch.images[2], 255 - batch.plain[2])


def test_an_unfit_result_of_a_transform_raises_with_the_sample(open_with: Open) -> None:
    text = "def f(image, labels, rng):\n    return image[:, :16] if labels['angle'] == 6 else image, labels"
    source = open_with(text, "f")
    Filled(source, [4, 6])
    says = r"module0\.py:1: it returns an image of uint8 \(32, 16, 3\).* a/0005\.jpg"
    with pytest.raises(UnfitTransformError, match=says):
        Filled(source, [4, 5, 6])


def test_the_cache_keeps_images_from_before_the_transform(open_with: Open, tmp_path: Path) -> None:
    cache = CachePlace(str(tmp_path), None, writable=True)
    source = open_with("def f(image, labels, rng):\n    return 255 - image, labels", "f", cache)
    first = Filled(source, [1, 2])
    assert source.cache is not None
    source.cache.publish_rows()
    again = Filled(source, [1, 2])
    assert (first.filling.count_of_gathered_rows, again.filling.count_of_gathered_rows) == (0, 2)
    assert np.array_equal(again.plain, first.plain)
    assert np.array_equal(again.images[:2], 255 - again.plain[:2])


def test_the_progress_page_names_the_row_that_is_transformed(open_with: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    source, seen = open_with(DRAWN, "draw"), list[RowProgress]()
    task = Unfilled(source, [1, PAD_ID, 2])
    transform_row = StreamTransform.transform_row

    def watched(transform: StreamTransform, *arguments: Any) -> None:
        seen.append(task.track.read_row_progress())
        transform_row(transform, *arguments)

    monkeypatch.setattr(StreamTransform, "transform_row", watched)
    task.filling.decode_rows(source.read_files(task.ids), 0, 3)
    task.filling.write_labels()
    task.filling.transform_rows(0, 3)
    assert [(each.place, each.phase) for each in seen] == [(0, WorkerPhase.TRANSFORMING), (2, WorkerPhase.TRANSFORMING)]
    assert task.track.read_row_progress().phase is WorkerPhase.IDLE


def test_samples_that_a_store_holds_are_transformed_too(open_with: Open) -> None:
    stocked, _ = holding(open_with("def f(image, labels, rng):\n    return image + 1, labels", "f"), 3, 4)
    assert [set(row.flat) for row in Filled(stocked, [4, 3]).images[:2]] == [{5}, {4}]


TURN: Final = """
    import numpy as np

    def turn(images, labels, rng):
        if rng.random() < 0.5:
            images = {name: image[:, ::-1] for name, image in images.items()}
        return images, labels
    """


def test_a_transform_of_several_images_turns_a_photo_and_its_mask_together(tmp_path: Path, program: Write) -> None:
    folder = write_masked_photos(tmp_path / "data")
    place = program("turning", TURN).parent
    with open_records(folder_config(folder), tmp_path) as reader:
        plain = Filled(reader, list(range(6)), epoch=3).arrays
    with open_records(folder_config(folder, transform="turning:turn"), place) as reader:
        whole, part = Filled(reader, list(range(6)), epoch=3), Filled(reader, [4, 1], [5, 0], epoch=3)
    assert whole.bad == []
    turned = [not np.array_equal(*pair) for pair in zip(plain["photo"], whole.arrays["photo"], strict=True)]
    assert 0 < sum(turned) < 6
    for row, is_turned in enumerate(turned):
        for name, rows in plain.items():
            assert np.array_equal(whole.arrays[name][row], rows[row][:, ::-1] if is_turned else rows[row])
    for name, rows in part.arrays.items():
        assert np.array_equal(rows[[5, 0]], whole.arrays[name][[4, 1]])
