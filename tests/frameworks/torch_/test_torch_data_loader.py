"""`loader`, which takes the place of a DataLoader, with a stand-in for torch on NumPy arrays."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.stream_fake import ANGLE, KIND, FakeClient, FakeStream, make_spec
from support.torch_fake import DIARY, make

from streamd.core.spec import ImageSpec, LabelSpec
from streamd.errors import ConfigError, NoCopyError, NoDatasetError, NoSkippingError
from streamd.frameworks.torch import loader

CAPTION = LabelSpec("caption", "string", text_bytes=4)


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", make())


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", make(devices=2))


def samples(images: Any) -> list[int]:
    """Whose images these are: all pixels of a fake are the sample's number."""
    values: list[int] = images[:, 0, 0, 0].tolist()
    return values


def test_each_loop_is_an_epoch_in_the_streams_order() -> None:
    stream = FakeStream(make_spec(KIND), total_epochs=2)
    data = loader(stream)
    for epoch in range(2):
        steps = [(samples(images), labels.tolist()) for images, labels in data]
        wanted = [stream.ids(epoch, index) for index in range(3)]
        assert steps == [(ids.tolist(), (ids % 3).tolist()) for ids in wanted]
        assert len(steps) == len(data) == 3
    assert [receipt.complete for receipt in stream.receipts] == [True, True]


def test_an_argument_that_is_not_a_stream_is_refused_with_what_to_write() -> None:
    client: Any = FakeClient([make_spec(KIND)])
    with pytest.raises(ConfigError, match=r"loader takes a stream, not a client: write  loader\(client.subscribe\("):
        loader(client)
    name: Any = "val"
    with pytest.raises(ConfigError, match=r"not the name 'val': write  loader\(client.subscribe\('val'\)\)"):
        loader(name)
    number: Any = 3
    with pytest.raises(ConfigError, match=r"targets must be the name of a label or an image.*, not 3"):
        loader(FakeStream(make_spec(KIND)), targets=number)


def test_epochs_come_one_at_a_time_to_the_last() -> None:
    stream = FakeStream(make_spec(KIND), total_epochs=2, index=2)
    assert [len(list(steps)) for steps in loader(stream).epochs()] == [1, 3]


def test_nothing_is_fetched_before_a_step_wants_it() -> None:
    stream = FakeStream(make_spec(KIND))
    steps = iter(loader(stream))
    assert stream.taken == []
    next(steps)
    assert stream.taken == [(0, 0)]


@pytest.mark.parametrize(("channels_first", "shape"), [(True, (4, 3, 8, 8)), (False, (4, 8, 8, 3))])
def test_images_lie_over_the_batch_and_hold_its_lease(channels_first: bool, shape: tuple[int, ...]) -> None:
    stream = FakeStream(make_spec(KIND))
    steps = iter(loader(stream, channels_first=channels_first))
    images, labels = next(steps)
    assert (images.shape, images.dtype.name, labels.dtype.name) == (shape, "uint8", "int64")
    channel = 1 if channels_first else 3
    assert images.strides[channel] == 1  # the channels of a pixel lie together
    assert stream.leases == 1
    del images
    assert stream.leases == 0


def test_at_most_the_current_and_the_next_batch_are_held() -> None:
    stream = FakeStream(make_spec(KIND))
    for _, _ in loader(stream):
        pass
    assert stream.most_leases <= 2


def test_several_labels_come_by_name_and_some_may_go_in_beside_the_images() -> None:
    stream = FakeStream(make_spec(ANGLE, KIND))
    _, labels = next(iter(loader(stream)))
    assert {name: label.dtype.name for name, label in labels.items()} == {"angle": "float32", "kind": "int64"}
    given, kinds = next(iter(loader(stream, inputs="angle")))
    assert (given["images"].shape, given["angle"].shape, kinds.shape) == ((4, 3, 8, 8), (4,), (4,))


@pytest.mark.parametrize("labels", [(), (CAPTION,)], ids=["none", "text"])
def test_labels_are_an_empty_dict_where_there_is_nothing_to_learn(labels: tuple[LabelSpec, ...]) -> None:
    images, targets = next(iter(loader(FakeStream(make_spec(*labels)))))
    assert (images.shape, targets) == ((4, 3, 8, 8), {})
    assert next(iter(loader(FakeStream(make_spec(ANGLE, KIND)), targets=None)))[1] == {}


SEVERAL = {
    "photo": ImageSpec(8, 6, 3),
    "tiles": ImageSpec(4, 5, 4, mode="raw", dtype="uint16"),
    "pair": ImageSpec(8, 6, 3, views=2),
    "mask": ImageSpec(8, 6, 1, mode="index"),
}


def test_several_images_come_by_name_with_their_channels_first_and_masks_are_classes() -> None:
    images, labels = next(iter(loader(FakeStream(make_spec(KIND, images=SEVERAL)))))
    assert {name: (each.shape, each.dtype.name) for name, each in images.items()} == {
        "photo": ((4, 3, 8, 6), "uint8"),
        "tiles": ((4, 4, 4, 5), "uint16"),
        "pair": ((4, 2, 3, 8, 6), "uint8"),
    }
    assert (labels["mask"].shape, labels["mask"].dtype.name) == ((4, 8, 6), "int64")
    assert labels["kind"].shape == (4,)


def test_named_images_are_the_inputs_and_targets_exactly() -> None:
    data = loader(FakeStream(make_spec(KIND, images=SEVERAL)), inputs=["photo", "mask"], targets=["tiles"])
    images, tiles = next(iter(data))
    assert {name: (each.shape, each.dtype.name) for name, each in images.items()} == {
        "photo": ((4, 3, 8, 6), "uint8"),
        "mask": ((4, 8, 6), "uint8"),
    }
    assert tiles.shape == (4, 4, 4, 5)
    images, _ = next(iter(loader(FakeStream(make_spec(images=SEVERAL)), channels_first=False, inputs="pair")))
    assert images.shape == (4, 2, 8, 6, 3)


def test_an_autoencoder_learns_its_own_input() -> None:
    stream = FakeStream(make_spec(KIND))
    images, targets = next(iter(loader(stream, targets=["image"])))
    assert images.shape == targets.shape == (4, 3, 8, 8)
    assert (samples(images), samples(targets)) == (stream.ids(0, 0).tolist(),) * 2


def test_masked_rows_are_left_out_of_every_image() -> None:
    spec = make_spec(KIND, images=SEVERAL, bad_policy="mask")
    first = FakeStream(spec).ids(0, 0).tolist()
    images, labels = next(iter(loader(FakeStream(spec, weightless=frozenset(first[1:2])))))
    kept = [first[0], *first[2:]]
    assert [each.flat[:: each[0].size].tolist() for each in (*images.values(), labels["mask"])] == [kept] * 4
    _, labels, weights = next(iter(loader(FakeStream(spec), weights=True)))
    assert (len(labels["mask"]), weights.shape) == (4, (4,))


@pytest.mark.parametrize("policy", ["mask", "substitute"])
def test_rows_of_weight_0_are_left_out_and_count_as_delivered(policy: str) -> None:
    stream = FakeStream(make_spec(KIND, bad_policy=policy), weightless=frozenset({3, 5}))
    data = loader(stream)
    steps = [(samples(images), labels.tolist()) for images, labels in data]
    wanted = [[sample for sample in stream.ids(0, index).tolist() if sample not in {3, 5}] for index in range(3)]
    assert steps == [(ids, [sample % 3 for sample in ids]) for ids in wanted]
    assert [(receipt.samples, receipt.ok) for receipt in stream.receipts] == [(10, True)]
    assert stream.leases == 0


def test_a_shorter_batch_keeps_its_layout_and_ends_its_lease() -> None:
    stream = FakeStream(make_spec(ANGLE, KIND), weightless=frozenset({int(FakeStream(make_spec()).ids(0, 0)[1])}))
    given, kinds = next(iter(loader(stream, inputs="angle")))
    assert (given["images"].shape, given["angle"].shape, kinds.shape) == ((3, 3, 8, 8), (3,), (3,))
    assert given["images"].strides[1] == 1
    assert stream.leases == 0  # what is left is a copy


def test_a_batch_with_no_row_left_is_skipped() -> None:
    stream = FakeStream(make_spec(KIND), total_epochs=1)
    for gone in (0, 2):
        stream.weightless |= frozenset(stream.ids(0, gone).tolist())
    data = loader(stream)
    steps = [samples(images) for images, _ in data]
    assert steps == [stream.ids(0, 1).tolist()]
    assert len(data) == 3
    assert stream.index == 0  # it lies after the last batch
    assert [(receipt.samples, receipt.complete) for receipt in stream.receipts] == [(10, True)]


@pytest.mark.parametrize("changes", [{}, {"weighted": True}, {"bad_policy": "mask"}], ids=str)
def test_weights_are_a_third_element_on_request_and_no_row_is_left_out(changes: dict[str, Any]) -> None:
    stream = FakeStream(make_spec(ANGLE, **changes), weightless=frozenset({3}))
    for images, labels, weights in loader(stream, weights=True):
        assert len(images) == len(labels) == len(weights)
        assert weights.dtype.name == "float32"
        assert (weights == 0).tolist() == [sample == 3 for sample in samples(images)]


def test_sample_weights_cannot_be_ignored() -> None:
    with pytest.raises(ConfigError, match=r"'train' have weights of their own.*loader\(stream, weights=True\)"):
        loader(FakeStream(make_spec(KIND, weighted=True)))


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize(("device", "number"), [("cuda:1", 1), ("cuda", 0)])
def test_a_gpu_copies_on_a_side_stream_and_its_work_waits_for_the_copy(device: str, number: int) -> None:
    stream = FakeStream(make_spec())
    images, _ = next(iter(loader(stream, device)))
    wanted = [
        "pin",
        f"to cuda:{number} on side of {number}, not waited for",
        f"main of {number} waits for side of {number}",
        f"kept for main of {number}",
    ]
    assert wanted == DIARY
    assert (images.shape, images.strides[1]) == ((4, 3, 8, 8), 1)


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_the_lease_ends_when_the_device_has_its_copy(device: str) -> None:
    stream = FakeStream(make_spec(KIND))
    steps = iter(loader(stream, device))
    images, _ = next(steps)
    assert stream.leases == 0
    assert samples(images) == stream.ids(0, 0).tolist()


@pytest.mark.usefixtures("_two_gpus")
def test_a_gpu_gets_the_rows_that_are_left() -> None:
    first = FakeStream(make_spec(KIND)).ids(0, 0).tolist()
    stream = FakeStream(make_spec(KIND, bad_policy="mask"), weightless=frozenset(first[2:3]))
    images, labels = next(iter(loader(stream, "cuda")))
    kept = [*first[:2], *first[3:]]
    assert (samples(images), labels.tolist()) == (kept, [sample % 3 for sample in kept])
    assert DIARY.count("pin") == 2
    assert stream.leases == 0


@pytest.mark.usefixtures("_two_gpus")
@pytest.mark.parametrize("device", ["cpu", None])
def test_the_cpu_copies_nothing(device: str | None) -> None:
    next(iter(loader(FakeStream(make_spec(KIND)), device)))
    assert DIARY == []


@pytest.mark.parametrize(
    ("gpus", "device", "said"),
    [
        (0, "cuda", "device='cuda' does not exist: torch 2.0 sees 0 CUDA devices"),
        (2, "cuda:2", "device='cuda:2' does not exist: torch 2.0 sees 2 CUDA devices"),
        (0, "gpu", "device='gpu' is not a device that torch knows: [^\n]+$"),
        (0, 1.5, "device=1.5 is not a device that torch knows: [^\n]+$"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: object, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", make(devices=gpus))
    with pytest.raises(ConfigError, match=said):
        loader(FakeStream(make_spec(KIND)), device)


def test_indexing_and_pickling_a_loader_are_refused_with_the_reason() -> None:
    data = loader(FakeStream(make_spec(KIND)))
    with pytest.raises(NoDatasetError, match=r"loader\(stream\) in place of the DataLoader, not inside it"):
        data[0]
    with pytest.raises(NoCopyError, match=r"write  loader\(streamd\.connect\(\)\.subscribe\('train'\)\)  in the other"):
        pickle.dumps(data)


def test_keys_make_each_step_a_dict() -> None:
    data = loader(FakeStream(make_spec(KIND)), keys=("pixel_values", "labels"))
    assert [list(step) for step in data] == [["pixel_values", "labels"]] * 3
    weighted = loader(FakeStream(make_spec(KIND)), weights=True, keys=["pixel_values", "labels", "weights"])
    assert next(iter(weighted))["weights"].tolist() == [1.0] * 4


@pytest.mark.parametrize("keys", [("pixel_values",), ("labels", "labels"), ("a", "b", "c"), ("a", 1)])
def test_keys_that_do_not_name_each_item_once_are_refused(keys: Any) -> None:
    with pytest.raises(ConfigError, match=r'write  keys=\("pixel_values", "labels"\)'):
        loader(FakeStream(make_spec(KIND)), keys=keys)


def test_accelerate_is_told_of_the_last_step_of_a_pass_and_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader of its own that is read meanwhile stays the active one only until the next step of ours."""
    state = SimpleNamespace(dataloader_references=[None], active_dataloader=None)
    accelerate = SimpleNamespace(
        GradientState=lambda: state, PartialState=lambda: SimpleNamespace(num_processes=2), is_initialized=lambda: True
    )
    monkeypatch.setitem(sys.modules, "accelerate.state", accelerate)
    data = loader(FakeStream(make_spec(KIND)))
    told = []
    for _ in data:
        told.append((state.dataloader_references[-1] is data, data.end_of_dataloader, data.remainder))
        state.dataloader_references += ["another"]
    assert told == [(True, False, 0), (True, False, 0), (True, True, 4)]
    assert state.dataloader_references == [None, "another", "another", "another"]


def test_steps_are_skipped_only_in_a_loader_that_was_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = SimpleNamespace(IterableDataset=object)
    monkeypatch.setitem(sys.modules, "torch.utils.data", datasets)
    data = loader(FakeStream(make_spec(KIND)))
    next(iter(data))
    state = data.state_dict()
    with pytest.raises(NoSkippingError, match=r"write  loader.load_state_dict\(state\)"):
        _ = data.dataset
    rest = [labels.tolist() for _, labels in data]
    data.load_state_dict(state)
    done, *left = data.dataset
    assert [labels.tolist() for _, labels in left] == rest
    for use in (lambda: [*done], lambda: dict(done)):
        with pytest.raises(ConfigError, match="fewer steps were skipped"):
            use()
    assert not hasattr(data, "dataset")


@pytest.mark.parametrize(
    ("world", "evaluate", "processes", "lines"), [(1, None, 2, 1), (2, None, 2, 0), (1, True, 2, 0), (1, None, 1, 0)]
)
def test_ranks_that_all_train_on_the_whole_stream_are_told_so_once(
    world: int,
    evaluate: bool | None,
    processes: int,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 0, get_world_size=lambda: processes
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", library)
    data = loader(FakeStream(make_spec(KIND), world=world), evaluate=evaluate)
    for _ in range(2):
        assert len(list(data)) == 3
    told = capsys.readouterr().err
    assert told.count("every process of torch.distributed (rank 0 of 2) trains on the whole of stream") == lines
