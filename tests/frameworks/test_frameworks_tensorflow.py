"""Batches as TensorFlow tensors: they share the lent memory where possible, and hold its lease as long as they live."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon_process import Start, stream_config, wait_until, write_images
from support.leased_arrays import Lender, address

import streamd
from streamd.errors import MissingExtraError
from streamd.frameworks import import_library
from streamd.frameworks.tensorflow import tensor

Images = np.ndarray[Any, Any]

pytestmark = pytest.mark.train


def tensorflow() -> Any:
    return import_library("tensorflow", "train", "a test")


def place(aliased: Any) -> int:
    return address(np.asarray(memoryview(aliased)))


def test_a_tensor_lies_over_the_lent_memory_and_holds_its_lease() -> None:
    lender = Lender()
    images = lender.lend()
    aliased = tensor(images)
    assert place(aliased) == address(images)
    np.testing.assert_array_equal(aliased.numpy(), images)
    del images
    gc.collect()
    assert lender.held == 1
    del aliased
    assert lender.held == 0


def test_a_part_of_a_batch_lies_over_its_memory_too() -> None:
    images = Lender().lend()
    assert place(tensor(images[1:3])) == address(images[1])


def test_a_lease_ends_when_a_pipeline_of_tensorflows_own_threads_drops_the_tensor() -> None:
    lender = Lender()
    tf = tensorflow()
    pipeline = tf.data.Dataset.from_tensors(tensor(lender.lend())).map(lambda x: x + 1).prefetch(1)
    assert len(list(pipeline)) == 1
    assert lender.held == 1
    del pipeline
    wait_until(lambda: gc.collect() >= 0 and lender.held == 0, "the pipeline has let go")


def test_operations_that_might_reuse_their_input_leave_lent_memory_alone() -> None:
    tf = tensorflow()
    images = Lender().lend()
    before = images.copy()

    def steps(x: Any) -> Any:
        return tf.nn.relu(tf.clip_by_value(tf.bitwise.invert(x + tf.constant(1, tf.uint8)), 3, 200))

    for function in (steps, tf.function(steps), tf.function(steps, jit_compile=True)):
        function(tensor(images))
    np.testing.assert_array_equal(images, before)


def copied(images: Images) -> bool:
    made = tensor(images)
    np.testing.assert_array_equal(made.numpy(), images)
    return place(made) != address(images)


@pytest.mark.parametrize(
    "cut",
    [
        lambda images: images.reshape(-1)[1:],
        lambda images: images[:, ::2],
        lambda images: images[:0],
        lambda images: images.reshape(-1).view(">i4"),
    ],
    ids=["unaligned", "strided", "empty", "byte order"],
)
def test_arrays_that_tensorflow_would_refuse_are_copied(cut: Callable[[Images], Images]) -> None:
    assert copied(cut(Lender().lend()))


def test_labels_are_copied_so_that_later_writes_do_not_show() -> None:
    labels = np.zeros(4096, dtype=np.float32)
    made = tensor(labels)
    labels[:] = 1
    assert made.numpy().max() == 0


def test_a_tensorflow_that_refuses_the_capsule_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    tf, lender = tensorflow(), Lender()
    images = lender.lend()

    def refuse(_capsule: object) -> None:
        raise tf.errors.InvalidArgumentError(None, None, "not this one")

    monkeypatch.setattr(tf.experimental.dlpack, "from_dlpack", refuse)
    assert copied(images)
    del images
    gc.collect()
    assert lender.held == 0


def test_a_program_exits_cleanly_while_a_tensor_holds_a_lease() -> None:
    code = (
        "from support.leased_arrays import Lender; from streamd.frameworks.tensorflow import tensor\n"
        "kept = tensor(Lender().lend()); print(int(kept[3, 0, 0, 0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_a_missing_tensorflow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingExtraError, match=r"needs tensorflow.*pip install 'streamd-loader\[train\]'"):
        tensor(np.zeros(1))


@pytest.mark.parametrize("prefetch", [64, 8, 4])
def test_a_tensorflow_cache_of_a_stream_fills_or_raises_with_the_held_batches(
    start_daemon: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    """It keeps the memory of each batch: 64 may be held, or as many as there are, or half of them."""
    monkeypatch.setattr("streamd.client.waiting.HELD_COLLECT_S", 0.01)
    monkeypatch.setattr("streamd.client.waiting.HELD_ERROR_S", 0.01)
    tf = tensorflow()
    daemon = start_daemon({"workers": 1, "streams": {"train": stream_config(write_images(tmp_path, {"cat": 64}))}})
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1, prefetch=prefetch) as stream:
        shape = tf.TensorSpec((None, *stream.spec.image_shape), tf.uint8)
        batches = tf.data.Dataset.from_generator(lambda: (each.images for each in stream), output_signature=shape)
        cached = batches.cache().prefetch(2)
        if prefetch < len(stream):
            with pytest.raises(tf.errors.OpError, match="BatchesHeldError: 4 batches are still held"):
                list(cached)
            return
        assert [len(list(cached)) for _ in range(3)] == [len(stream)] * 3
        assert stream.receipts[0].ok
