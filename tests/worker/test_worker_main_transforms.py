"""A worker that runs a transform: its rows, its words, and what it is refused for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec import structs
from support.daemon_process import wait_until
from support.transform_programs import Write
from support.worker_driver import ROWS, Hand, pixels, task

from streamd.core.sampler import PAD_ID
from streamd.core.slot_layout import compute_layout
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.transform_source import find_transform_source
from streamd.decode.pixel_id import compute_pixel_id
from streamd.ipc.progress_page import WorkerPhase
from streamd.ipc.worker_messages import OpenStream, StreamOpenFailed, StreamReady, WorkerReport


@pytest.fixture
def hand() -> Iterator[Hand]:
    with Hand() as hand:
        yield hand


WORDY = "def f(image, labels, rng):\n    print('a word')\n    return 255 - image, {'label': 1 - labels['label']}"
LATE = "def f(image, labels, rng):\n    return image[: 32 - 8 * labels['label']], labels"
WRONG = "def f(image, labels, rng):\n    return image.T, labels"


@pytest.mark.long
def test_a_transform_has_its_way_with_rows_and_what_is_wrong_with_one_is_told_with_its_line(
    hand: Hand, stream: ServedStream, program: Write
) -> None:
    def opened(number: int, text: str) -> WorkerReport:
        folder = program(f"module{number}", text).parent
        hand.send(
            OpenStream(
                number, str(stream.manifest_path), stream.spec, None, find_transform_source(f"module{number}:f", folder)
            )
        )
        return hand.hear()

    assert isinstance(ready := opened(0, WORDY), StreamReady)
    assert ready.pixel_id != compute_pixel_id(stream.spec.image)
    done = hand.finish(task(stream, 1, [0, 1, 2], [5, PAD_ID, 0]))
    assert (done.bad, done.unfit) == ((), "")
    place, memory = compute_layout(stream.spec, ROWS), hand.slots.map_slot(1)
    assert np.array_equal(place.images.build_array_in_memory(memory)[0], 255 - pixels(stream, 5))
    assert place.labels["label"].build_array_in_memory(memory)[:3].tolist() == [1, 0, 0]

    assert isinstance(told := opened(1, WRONG), StreamOpenFailed)
    assert told.reason.startswith(
        "streams.train.transform: transform at module1.py:1: it returns an image of uint8 (3, 32, 32); "
    )

    assert isinstance(opened(2, LATE), StreamReady)
    done = hand.finish(structs.replace(task(stream, 2, [0], [3]), stream=2))
    assert done.unfit.startswith("transform at module2.py:1: it returns an image of uint8 (24, 32, 3); ")
    assert "; the sample: cat/0003.jpg; fix it" in done.unfit

    folder = program("endless", "import time\ndef f(image, labels, rng):\n    time.sleep(1e6)").parent
    hand.send(OpenStream(3, str(stream.manifest_path), stream.spec, None, find_transform_source("endless:f", folder)))
    wait_until(lambda: hand.track.read_transform_trial().phase is WorkerPhase.TRYING, "the transform is tried")
    assert (hand.track.read_transform_trial().stream, hand.track.read_transform_trial().subject) == (
        3,
        "transform at endless.py:2",
    )
    status, printed = hand.end()  # nobody waits for it
    assert (status, set(printed.split("\n"))) == (0, {"a word", ""})
