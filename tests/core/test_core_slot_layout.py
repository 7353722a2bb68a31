"""Tensors are aligned and apart in a slot, and both sides compute the same layout."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_specs import some_spec

from streamd.core.slot_layout import SlotLayout, SlotTensor, compute_layout, compute_slot_bytes
from streamd.core.spec import ImageSpec, LabelSpec, StreamSpec
from streamd.limits import PAGE_BYTES, TENSOR_ALIGN_BYTES

LABELS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["category", "int", "float", "tags", "string"]), st.integers(0, 5), st.integers(0, 99)),
    max_size=5,
)
SPECS = st.builds(
    lambda height, width, channels, labels, size: some_spec(
        images={"image": ImageSpec(height, width, channels)},
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


def tensors(place: SlotLayout) -> list[SlotTensor]:
    return [*place.arrays.values(), place.sample_ids, place.weights, *place.labels.values()]


@EXAMPLES
@given(SPECS, st.data())
def test_tensors_are_aligned_do_not_overlap_and_fit_the_slot(spec: StreamSpec, data: st.DataObject) -> None:
    place = compute_layout(spec, data.draw(st.integers(1, spec.batch_size)))
    by_offset = sorted(tensors(place), key=lambda tensor: tensor.offset)
    assert all(tensor.offset % TENSOR_ALIGN_BYTES == 0 for tensor in by_offset)
    assert all(one.offset + one.size_bytes <= other.offset for one, other in pairwise(by_offset))
    assert by_offset[-1].offset + by_offset[-1].size_bytes == place.size_bytes <= compute_slot_bytes(spec)
    assert compute_slot_bytes(spec) % PAGE_BYTES == 0
    assert place.images.offset == 0


@EXAMPLES
@given(SPECS)
def test_a_spec_sent_over_the_wire_gives_the_same_layout(spec: StreamSpec) -> None:
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=StreamSpec)
    for rows in {1, spec.batch_size}:
        ours, theirs = compute_layout(spec, rows), compute_layout(there, rows)
        assert ours == theirs
        assert list(ours.labels) == list(theirs.labels)


def test_each_image_of_a_sample_is_a_tensor_of_its_own() -> None:
    images = {
        "photo": ImageSpec(5, 7, 3),
        "mask": ImageSpec(5, 7, 1, mode="index", dtype="uint16", like="photo", fill=65535),
        "band": ImageSpec(3, 2, 4, mode="raw", dtype="float32"),
    }
    place = compute_layout(some_spec(images=images, labels={}), 10)
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors(place)} == {
        "photo": ("uint8", (10, 5, 7, 3)),
        "mask": ("uint16", (10, 5, 7)),
        "band": ("float32", (10, 3, 2, 4)),
        "sample_ids": ("int64", (10,)),
        "weights": ("float32", (10,)),
    }
    assert place.images is place.arrays["photo"]
    assert list(place.arrays) == list(images)


def test_shapes_and_dtypes_are_those_of_a_batch() -> None:
    place = compute_layout(some_spec(), 10)
    assert {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors(place)} == {
        "image": ("uint8", (10, 5, 7, 3)),
        "sample_ids": ("int64", (10,)),
        "weights": ("float32", (10,)),
        "label": ("int64", (10,)),
        "angle": ("float32", (10,)),
        "box": ("float32", (10, 4)),
    }
    assert place.images.size_bytes == 1050
    assert place.labels["box"].size_bytes == 160


def test_a_short_last_batch_is_laid_out_for_its_own_rows() -> None:
    spec = some_spec()
    last = compute_layout(spec, spec.batch_rows(spec.batches - 1))
    assert last.images.shape == (3, 5, 7, 3)
    assert last.labels["box"].shape == (3, 4)
    assert last.size_bytes < compute_layout(spec, spec.batch_size).size_bytes


def test_each_tensor_reads_back_what_was_written_to_it() -> None:
    spec = some_spec()
    memory = bytearray(compute_slot_bytes(spec))
    place = compute_layout(spec, 10)
    for number, tensor in enumerate(tensors(place), 1):
        view = tensor.build_array_in_memory(memoryview(memory))
        assert view.ctypes.data % tensor.build_array_in_memory(memoryview(memory)).itemsize == 0
        view[...] = number
    for number, tensor in enumerate(tensors(compute_layout(spec, 10)), 1):
        values = tensor.build_array_in_memory(memoryview(memory))
        assert (values == number).all()
        assert values.shape == tensor.shape
        assert values.flags.c_contiguous


def test_a_view_of_read_only_memory_cannot_be_written() -> None:
    place = compute_layout(some_spec(), 10)
    view = place.images.build_array_in_memory(memoryview(bytes(place.size_bytes)))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_too_short_memory_is_refused() -> None:
    place = compute_layout(some_spec(), 10)
    last = place.labels["box"]
    with pytest.raises(TypeError, match="buffer is too small"):
        last.build_array_in_memory(memoryview(bytes(place.size_bytes - 1)))


def test_labels_may_have_the_names_of_built_in_tensors() -> None:
    spec = some_spec(labels={name: LabelSpec(name, "float") for name in ("images", "weights", "sample_ids")})
    place = compute_layout(spec, 4)
    assert list(place.labels) == ["images", "weights", "sample_ids"]
    assert len({tensor.offset for tensor in tensors(place)}) == 6


def test_streams_that_differ_only_in_width_or_type_have_different_layouts() -> None:
    shapes = {
        compute_layout(some_spec(labels={"x": label}), 64).size_bytes
        for label in (LabelSpec("x", "float"), LabelSpec("x", "int"), LabelSpec("x", "float", 3))
    }
    assert len(shapes) == 3
    text = some_spec(labels={"x": LabelSpec("x", "string", text_bytes=99)})
    assert compute_layout(text, 64).labels["x"].size_bytes == 64 * 99


def test_a_slot_has_the_bytes_that_its_tensors_need() -> None:
    spec = some_spec(labels={}, images={"image": ImageSpec(64, 64, 3)}, batch_size=32)
    images = 32 * 64 * 64 * 3
    assert compute_layout(spec, 32).size_bytes == images + 32 * 8 + 32 * 4
    assert compute_slot_bytes(spec) == images + PAGE_BYTES
    assert np.dtype(compute_layout(spec, 32).weights.dtype).itemsize == 4
