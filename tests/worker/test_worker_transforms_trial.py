"""A transform is tried before it is used: faults are found then, and its results are part of the pixel id."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.transform_programs import DRAWN, Write

from streamd.core.spec import ImageSpec
from streamd.dataset.transform_source import find_transform_source
from streamd.decode.pixel_id import decode_probe_images
from streamd.errors import ConfigError
from streamd.ipc.slots import WorkerPhase
from streamd.worker.stream_reader import StreamReader
from streamd.worker.transforms import TriedTransform, open_transform

NAMED = {
    "photo": ImageSpec(8, 9, 3, "random_crop"),
    "mask": ImageSpec(8, 9, 1, "random_crop", mode="index", like="photo", fill=255),
    "band": ImageSpec(4, 5, 2, mode="raw", dtype="float32"),
}
SAME = "def f(image, labels, rng):\n    return image, labels\n"


def tried(
    program: Write, source: StreamReader, text: str, function: str = "f", name: str = "augment"
) -> TriedTransform:
    folder = program(name, text).parent
    return open_transform(
        find_transform_source(f"{name}:{function}", folder),
        source.manifest,
        source.spec.images,
        source.decoded_pixel_id,
    )


def test_a_fitting_transform_causes_no_remark(program: Write, source: StreamReader) -> None:
    assert tried(program, source, SAME).remark == ""


def test_the_pixel_id_covers_the_source_its_results_and_its_input(program: Write, source: StreamReader) -> None:
    ids = [
        tried(program, source, SAME).pixel_id,
        tried(program, source, SAME + "# a comment\n", name="a2").pixel_id,
        tried(program, source, DRAWN, "draw", "a3").pixel_id,
        source.decoded_pixel_id,
    ]
    assert len(set(ids)) == len(ids)
    assert tried(program, source, SAME, name="augment").pixel_id == ids[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "def f(image, labels, rng): return image / 255, labels",
            r"augment\.py:1: it returns an image of float64 .*uint8 \(32, ",
        ),
        ("def f(image, labels, rng): return image, {}", "it returns labels none; it must return 'label'"),
        (
            "def f(image, labels): return image, labels",
            (
                r"augment\.py:1 is called as f\(image, labels, rng\), but does not accept these arguments: too many "
                r"positional"
            ),
        ),
        ("def f(image, labels, rng): raise SystemExit(3)", r"transform raised SystemExit at augment\.py:1: 3"),
        ("def f(image, labels, rng): raise KeyboardInterrupt", r"transform raised KeyboardInterrupt at augment\.py:1"),
        (
            "def f(image, labels, rng): raise MemoryError",
            r"transform at augment\.py:1 needs more memory on a built-in image than a worker has, 3 GiB",
        ),
        (
            "def f(image, labels, rng): return [image, labels]",
            r"it returns list \[array\([^\n]*; it must return the pair",
        ),
        (
            "def f(image, labels, rng):\n  return imag, labels",
            r"transform raised NameError at augment\.py:2: name 'imag'",
        ),
        (
            "def f(image, labels, rng): return image, {'label': 7}",
            "it returns label 'label' as int 7; it must be from 0 to 1",
        ),
    ],
)
def test_a_faulty_transform_is_refused_before_serving(
    program: Write, source: StreamReader, text: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        tried(program, source, text)


@pytest.mark.parametrize(
    "draw", ["random.random() < 0.5", "np.random.default_rng().random() < 0.5", "next(count) % 24 < 12"]
)
def test_a_transform_with_other_random_numbers_than_its_rng_is_refused(
    program: Write, source: StreamReader, draw: str
) -> None:
    text = f"""
        import itertools, random
        import numpy as np
        count = itertools.count()
        def f(image, labels, rng):
            return (image[::-1] if {draw} else image), labels
        """
    with pytest.raises(ConfigError, match="take random numbers only from rng"):
        tried(program, source, text)


def test_a_transform_that_raises_on_labels_of_zero_is_used_with_a_remark(program: Write, source: StreamReader) -> None:
    text = "def f(image, labels, rng):\n  raise ValueError('an empty box')"
    remark = tried(program, source, text).remark
    assert remark == (
        "on a built-in image with labels of zero, transform raised ValueError at augment.py:2: an empty box"
    )


def test_each_phase_of_a_trial_is_reported_before_it_begins(program: Write, source: StreamReader) -> None:
    told: list[tuple[str, WorkerPhase]] = []
    place = find_transform_source("augment:f", program("augment", SAME).parent)
    open_transform(place, source.manifest, source.spec.images, source.decoded_pixel_id, lambda *said: told.append(said))
    assert told[0] == ("module 'augment'", WorkerPhase.IMPORTING)
    assert set(told[1:-1]) == {("transform at augment.py:1", WorkerPhase.TRYING)}
    assert len(told[1:-1]) == 2 * len(list(decode_probe_images(source.spec.image)))
    assert told[-1] == ("", WorkerPhase.IDLE)


def test_a_refused_transform_leaves_the_reported_phase_idle(program: Write, source: StreamReader) -> None:
    told: list[WorkerPhase] = []
    place = find_transform_source("augment:f", program("augment", "1 / 0").parent)
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        open_transform(
            place, source.manifest, source.spec.images, source.decoded_pixel_id, lambda _, phase: told.append(phase)
        )
    assert told == [WorkerPhase.IMPORTING, WorkerPhase.IDLE]


def test_a_transform_by_name_is_tried_on_samples_of_all_images(program: Write, source: StreamReader) -> None:
    text = """
        seen = set()
        def f(image, labels, rng):
            seen.add(tuple((name, each.shape, each.dtype.name) for name, each in image.items()))
            assert len(seen) == 1
            return image, labels
        """
    place = replace(find_transform_source("named:f", program("named", text).parent), by_name=True)
    found = open_transform(place, source.manifest, NAMED, source.decoded_pixel_id)
    assert found.remark == ""
    assert found.call.function.__globals__["seen"] == {
        (("photo", (8, 9, 3), "uint8"), ("mask", (8, 9), "uint8"), ("band", (4, 5, 2), "float32"))
    }


def test_a_transform_by_name_that_changes_a_dtype_is_refused_with_the_name(
    program: Write, source: StreamReader
) -> None:
    text = "def f(image, labels, rng): return image | {'band': image['band'].astype(float)}, labels"
    place = replace(find_transform_source("wide:f", program("wide", text).parent), by_name=True)
    with pytest.raises(ConfigError, match=r"image 'band' of float64 \(4, 5, 2\); it must return float32 \(4, 5, 2\)"):
        open_transform(place, source.manifest, NAMED, source.decoded_pixel_id)
