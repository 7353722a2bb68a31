"""What `fit_data` returns to users: its batches, its repr, and the labels and names of predicted rows."""

from __future__ import annotations

import gc
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.keras_recorder import Recorder, ids_of, steps, stop_after
from support.stream_fake import ANGLE, KIND, FakeStream, make_spec

from streamd.client import Batch
from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError, StreamdError
from streamd.frameworks.keras import fit_data, load_keras
from streamd.frameworks.keras.calls import DATASET_REMEDIES
from streamd.headroom import Replay

pytestmark = pytest.mark.train

ROOT = Path(__file__).parents[3]


def numbers_of(batch: tuple[Any, ...]) -> list[int]:
    """The sample numbers of a batch, which are its pixel values."""
    images: list[int] = np.asarray(batch[0])[:, 0, 0, 0].tolist()
    return images


def make_reader_of_means() -> Any:
    """A model whose prediction is the number of the sample."""
    keras = load_keras()
    return keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.GlobalAveragePooling2D()])


@pytest.mark.parametrize("given", [None, 2])
def test_a_loop_that_evaluates_sees_the_batches_of_evaluate_and_fit_continues_where_it_was(given: int | None) -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream, steps=given, evaluate=True)
    recorder.model.fit(fit_data(stream), verbose=0, callbacks=[stop_after(0, recorder.model)])
    seen = [number for batch in data for number in numbers_of(batch)]
    assert seen == ids_of(stream, *steps(0, given or 3))
    assert len(data) == len(list(data)) == (given or 3)
    for batch in data:
        assert numbers_of(batch) == ids_of(stream, (0, 0))
        break
    recorder.model.fit(fit_data(stream), verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 3))


def test_a_loop_gives_the_types_that_fit_gets_and_they_outlive_the_batch() -> None:
    stream, seen = FakeStream(make_spec(KIND)), list[Any]()
    keras = load_keras()

    class Looking(keras.Model):  # type: ignore[misc, name-defined]  # Keras has no types
        def call(self, images: Any) -> Any:
            seen.append(images.dtype)
            return keras.ops.zeros((keras.ops.shape(images)[0], 3))

    data = fit_data(stream)
    batches = list(data)
    gc.collect()
    assert stream.leases == 0
    assert [type(part) for part in batches[0]] == [type(part) for part in next(iter(data))]
    Looking().predict(data, verbose=0)
    assert {keras.backend.standardize_dtype(each) for each in seen} == {"uint8"}
    images, labels = batches[0]
    assert keras.backend.standardize_dtype(images.dtype) == "uint8"
    assert np.asarray(labels).tolist() == [number % 3 for number in numbers_of(batches[0])]


def test_a_loop_within_a_fit_of_the_same_stream_is_refused_and_takes_nothing() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    look = load_keras().callbacks.LambdaCallback(on_epoch_end=lambda *_: list(data))
    with pytest.raises(ConfigError, match=r"a loop over fit_data would take stream 'train' away.*of its own"):
        recorder.model.fit(data, verbose=0, callbacks=[look])
    assert stream.taken == steps(0, 3)


def test_a_loop_that_evaluates_raises_when_another_call_has_moved_the_stream() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    batches = iter(fit_data(stream, evaluate=True))
    next(batches)
    recorder.model.fit(fit_data(stream), verbose=0)
    with pytest.raises(StreamdError, match="this pass is over"):
        next(batches)
    recorder.model.fit(fit_data(stream), verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))


def test_a_loop_trains_as_fit_does_and_each_continues_after_the_other() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    seen = [number for batch in islice(data, 2) for number in numbers_of(batch)]
    recorder.model.fit(data, verbose=0, epochs=2)
    seen += recorder.trained + [number for batch in data for number in numbers_of(batch)]
    assert seen == ids_of(stream, *steps(0, 9))


def test_a_preview_shows_the_first_batches_of_the_next_pass_and_moves_nothing() -> None:
    stream, recorder = FakeStream(make_spec(ANGLE)), Recorder()
    data = fit_data(stream)
    for _ in range(2):
        assert [numbers_of(batch) for batch in data.preview(2)] == [ids_of(stream, each) for each in steps(0, 2)]
    recorder.model.fit(data, verbose=0)
    recorder.model.evaluate(data, steps=1, verbose=0)
    assert [numbers_of(batch) for batch in data.preview()] == [ids_of(stream, (1, 0))]
    recorder.model.fit(data, verbose=0)
    assert recorder.trained == ids_of(stream, *steps(0, 6))
    assert [each.complete for each in stream.receipts] == [True, False, True]
    with pytest.raises(ConfigError, match="batches=0: write a whole number of at least 1"):
        data.preview(0)


def test_fit_refuses_data_for_evaluation_and_other_words_than_true_and_false() -> None:
    with pytest.raises(ConfigError, match="fit would train on one epoch again and again"):
        Recorder().model.fit(fit_data(FakeStream(make_spec(ANGLE)), evaluate=True), verbose=0)
    word: Any = "always"
    with pytest.raises(ConfigError, match="evaluate='always': write True for passes that each begin at index 0"):
        fit_data(FakeStream(make_spec(ANGLE)), evaluate=word)


def test_the_repr_of_fit_data_shows_stream_steps_shapes_and_inputs() -> None:
    stream = FakeStream(make_spec(ANGLE, KIND, bad_policy="mask"))
    told = "2 steps an epoch, 4 samples each; x: images 8x8x3, angle (float); y: kind (3 classes); with weights"
    assert repr(fit_data(stream, inputs="angle", steps=2)) == f"<fit_data of 'train': {told}>"
    assert repr(fit_data(FakeStream(make_spec()))).endswith("3 steps an epoch, 4 samples each; x: image 8x8x3>")


def test_labels_and_names_stand_beside_the_rows_of_a_prediction() -> None:
    stream, model = FakeStream(make_spec(KIND)), make_reader_of_means()
    data = fit_data(stream)
    with pytest.raises(ConfigError, match=r"nothing has been predicted yet: call  model.predict\(data\)  first"):
        data.names()
    with pytest.raises(ConfigError, match="nothing has been predicted yet"):
        data.labels  # noqa: B018 - a property that raises
    for taken in (3, 2):
        predicted = np.round(model.predict(data, steps=taken, verbose=0)[:, 0]).astype(int)
        next(iter(data))  # looking changes nothing
        assert data.sample_ids.tolist() == predicted.tolist()
        assert data.labels.tolist() == (predicted % 3).tolist()
        assert data.names() == [f"{number}.png" for number in predicted]
    assert data.class_names == ["car", "cat", "dog"]


def test_labels_are_the_served_ones_whatever_the_model_gets() -> None:
    stream, model = FakeStream(make_spec(ANGLE, KIND)), make_reader_of_means()
    data = fit_data(stream, one_hot=True)
    predicted = np.round(model.predict(data, verbose=0)[:, 0]).astype(int)
    assert data.labels["kind"].tolist() == (predicted % 3).tolist()
    assert data.labels["angle"].tolist() == pytest.approx((predicted / 10).tolist())
    assert data.class_names == ["car", "cat", "dog"]
    with pytest.raises(ConfigError, match=r"class_names needs exactly one target with classes.*angle: float"):
        fit_data(stream, targets="angle").class_names  # noqa: B018 - a property that raises
    with pytest.raises(ConfigError, match="no targets"):
        fit_data(stream, targets=None).labels  # noqa: B018 - as above


def test_predicted_rows_are_copies_and_say_which_have_no_sample() -> None:
    spec = make_spec(KIND, images={"photo": ImageSpec(8, 8, 3), "mask": ImageSpec(8, 8, 1, mode="index")})
    held: list[Batch] = []
    for ids, kinds in ([4, 2, 7, 5], [1, 2, 2, 0]), ([1, -1, -1, -1], [1, 0, 0, 0]):
        arrays = {name: np.full((4, *image.shape), ids[0], np.uint8) for name, image in spec.images.items()}
        labels = {"kind": np.array(kinds)}
        held.append(Batch(arrays, labels, np.ones(4, np.float32), np.array(ids), (), 0, len(held), str, spec))
    data = fit_data(Replay(held, 2))
    make_reader_of_means().predict(data, verbose=0)
    for batch in held:  # whose owner may write to them
        batch.labels["kind"][:] = batch.arrays["mask"][:] = 9
    assert data.sample_ids.tolist() == [4, 2, 7, 5, 1, -1, -1, -1]
    assert data.labels["kind"].tolist() == [1, 2, 2, 0, 1, 0, 0, 0]
    assert data.labels["mask"][:, 0, 0].tolist() == [4] * 4 + [1] * 4
    with pytest.raises(ConfigError, match="are mask: image of mode index"):
        fit_data(Replay(held, 2), targets="mask").class_names  # noqa: B018 - a property that raises


class Served:
    """A client of one stream."""

    def __init__(self, stream: FakeStream) -> None:
        self.subscribe = lambda name: stream if name == "validation" else None


def test_the_confusion_matrix_of_the_page_counts_every_sample() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/your-code.md").read_text(), re.DOTALL)
    (block,) = (each for each in blocks if "confusion" in each)
    assert len(block.splitlines()) <= 5
    keras, stream = load_keras(), FakeStream(make_spec(KIND))
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3, "softmax", kernel_initializer="zeros")])
    found: dict[str, Any] = {"np": np, "model": model, "client": Served(stream), "fit_data": fit_data}
    exec(block, found)  # noqa: S102 - what users copy
    assert found["confusion"].tolist() == [[4, 0, 0], [3, 0, 0], [3, 0, 0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("train", r"fit_data takes a stream, not the name 'train': write  fit_data\(client.subscribe\('train'\)\)"),
        (type("Client", (), {"subscribe": None})(), r"not a client: write  fit_data\(client.subscribe\(\"train\"\)\)"),
        (3, "fit_data takes a stream, not int: write"),
    ],
)
def test_an_argument_that_is_not_a_stream_is_refused_with_what_to_write(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit_data(given)


def test_a_method_of_tf_data_is_refused_with_what_to_write_and_is_not_there_for_hasattr() -> None:
    data = fit_data(FakeStream(make_spec(ANGLE)))
    for name, remedy in DATASET_REMEDIES.items():
        assert not hasattr(data, name)
        with pytest.raises(ConfigError, match=f"not a tf.data.Dataset, which has {name}: {re.escape(remedy)}"):
            getattr(data, name)
    with pytest.raises(AttributeError, match="'StreamAdapter' object has no attribute 'stesp'"):
        data.stesp  # noqa: B018 - a misspelt property
