"""Tensors lie aligned and apart in a slot, and both sides find them at the same places."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_specs import some_spec

from streamd.core.slot_layout import Layout, Tensor, layout, slot_bytes
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.limits import PAGE_BYTES, TENSOR_ALIGN_BYTES

LABELS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["category", "int", "float", "tags", "string"]), st.integers(0, 5), st.integers(0, 99)),
    max_size=5,
)
SPECS = st.builds(
    lambda height, width, channels, labels, size: some_spec(
        image=ImageSpec(height, width, channels),
        labels={
            name: LabelSpec(name, kind, width, text_bytes=text_bytes)
            for name, (kind, width, text_bytes) in labels.items()
        },
        batch_size=size,
    ),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([1, 3]),
    LABELS,
    st.integers(1, 70),
)
EXAMPLES = settings(derandomize=True, deadline=None, max_examples=150)


def tensors(place: Layout) -> list[Tensor]:
    return [place.images, place.sample_ids, place.weights, *place.labels.values()]


@EXAMPLES
@given(SPECS, st.data())
def test_tensors_are_aligned_lie_apart_and_fit_the_slot(spec: StreamSpec, data: st.DataObject) -> None:
    place = layout(spec, data.draw(st.integers(1, spec.batch_size)))
    by_offset = sorted(tensors(place), key=lambda tensor: tensor.offset)
    assert all(tensor.offset % TENSOR_ALIGN_BYTES == 0 for tensor in by_offset)
    assert all(one.offset + one.nbytes <= other.offset for one, other in pairwise(by_offset))
    assert by_offset[-1].offset + by_offset[-1].nbytes == place.nbytes <= slot_bytes(spec)
    assert slot_bytes(spec) % PAGE_BYTES == 0
    assert place.images.offset == 0


@EXAMPLES
@given(SPECS)
def test_a_spec_that_went_over_the_wire_gives_the_same_layout(spec: StreamSpec) -> None:
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=StreamSpec)
    for rows in {1, spec.batch_size}:
        ours, theirs = layout(spec, rows), layout(there, rows)
        assert ours == theirs
        assert list(ours.labels) == list(theirs.labels)


def test_shapes_and_dtypes_are_those_of_a_batch() -> None:
    place = layout(some_spec(), 10)
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors(place)} == {
        "images": ("uint8", (10, 5, 7, 3)),
        "sample_ids": ("int64", (10,)),
        "weights": ("float32", (10,)),
        "label": ("int64", (10,)),
        "angle": ("float32", (10,)),
        "box": ("float32", (10, 4)),
    }
    assert place.images.nbytes == 1050
    assert place.labels["box"].nbytes == 160


def test_a_short_last_batch_is_laid_out_for_its_own_rows() -> None:
    spec = some_spec()
    last = layout(spec, spec.rows(spec.batches - 1))
    assert last.images.shape == (3, 5, 7, 3)
    assert last.labels["box"].shape == (3, 4)
    assert last.nbytes < layout(spec, spec.batch_size).nbytes


def test_what_one_side_writes_the_other_reads_and_no_tensor_touches_another() -> None:
    spec = some_spec()
    memory = bytearray(slot_bytes(spec))
    place = layout(spec, 10)
    for number, tensor in enumerate(tensors(place), 1):
        view = tensor.view(memoryview(memory))
        assert view.ctypes.data % tensor.view(memoryview(memory)).itemsize == 0
        view[...] = number
    for number, tensor in enumerate(tensors(layout(spec, 10)), 1):
        values = tensor.view(memoryview(memory))
        assert (values == number).all()
        assert values.shape == tensor.shape
        assert values.flags.c_contiguous


def test_a_view_of_read_only_memory_cannot_be_written() -> None:
    place = layout(some_spec(), 10)
    view = place.images.view(memoryview(bytes(place.nbytes)))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_memory_that_is_too_short_is_refused() -> None:
    place = layout(some_spec(), 10)
    last = place.labels["box"]
    with pytest.raises(TypeError, match="buffer is too small"):
        last.view(memoryview(bytes(place.nbytes - 1)))


def test_labels_may_have_the_names_of_our_own_tensors() -> None:
    spec = some_spec(labels={name: LabelSpec(name, "float") for name in ("images", "weights", "sample_ids")})
    place = layout(spec, 4)
    assert list(place.labels) == ["images", "weights", "sample_ids"]
    assert len({tensor.offset for tensor in tensors(place)}) == 6


def test_streams_that_differ_in_width_or_type_only_have_layouts_of_their_own() -> None:
    shapes = {
        layout(some_spec(labels={"x": label}), 64).nbytes
        for label in (LabelSpec("x", "float"), LabelSpec("x", "int"), LabelSpec("x", "float", 3))
    }
    assert len(shapes) == 3
    assert layout(some_spec(labels={"x": LabelSpec("x", "string", text_bytes=99)}), 64).labels["x"].nbytes == 64 * 99


def test_a_slot_has_the_bytes_that_its_tensors_need() -> None:
    spec = some_spec(labels={}, image=ImageSpec(64, 64, 3), batch_size=32)
    images = 32 * 64 * 64 * 3
    assert layout(spec, 32).nbytes == images + 32 * 8 + 32 * 4
    assert slot_bytes(spec) == images + PAGE_BYTES
    assert np.dtype(layout(spec, 32).weights.dtype).itemsize == 4
