"""What a transform has against a sample is found as a worker would find it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.transform_programs import Write

from streamd.cli.check.reader_messages import FaultEffect
from streamd.cli.check.reader_process import transform_sample_row
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.transform_source import find_transform_source
from streamd.ipc.worker_messages import OpenStream
from streamd.worker.stream_reader import StreamReader, open_reader

TEXT = """
    def f(image, labels, rng):
        if (image == 1).all():
            raise ValueError("too dark")
        return image[: 16 if (image == 2).all() else 32], labels
    """


@pytest.fixture
def transformed(stream: ServedStream, program: Write) -> Iterator[StreamReader]:
    """Raises on images that are 1 throughout, and halves those that are 2."""
    place = find_transform_source("augment:f", program("augment", TEXT).parent)
    source, _ = open_reader(OpenStream(0, str(stream.manifest_path), stream.spec, None, place))
    yield source
    source.close()


@pytest.mark.parametrize(
    ("colour", "effect", "reason"),
    [
        (1, "transform", "transform raised ValueError at augment.py:4: too dark"),
        (2, "stop", "transform at augment.py:2: an image of uint8 (16, 32, 3) comes back; uint8 (32, 32, 3) is wanted"),
    ],
)
def test_an_objection_says_what_a_worker_would_do_about_it(
    transformed: StreamReader, colour: int, effect: FaultEffect, reason: str
) -> None:
    fault = transform_sample_row(transformed, 3, np.full((32, 32, 3), colour, np.uint8))
    assert fault is not None
    assert (fault.sample_id, fault.effect, fault.reason) == (3, effect, reason)


def test_nothing_is_said_against_other_samples_nor_without_a_transform(
    transformed: StreamReader, source: StreamReader
) -> None:
    assert transform_sample_row(transformed, 3, np.full((32, 32, 3), 3, np.uint8)) is None
    assert transform_sample_row(source, 3, np.full((32, 32, 3), 1, np.uint8)) is None
