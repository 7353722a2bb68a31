"""The contract of passes, the same for every adapter: which samples each way of writing a loop sees, on a real daemon.

An adapter is a way to begin a pass over a stream; a row is a way to write a loop. What must be seen is asked of the
daemon batch by batch, by another way than any pass takes.
"""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from support import torch_fake
from support.daemon_process import DaemonProcess
from support.forked_child import in_a_forked_child

import streamd
from streamd.client import Batch, Client, Stream
from streamd.errors import ConfigError, ForkedClientError, NoCopyError, StreamdError, TokenError
from streamd.frameworks.torch import loader

STEPS: Final = 5  # an epoch: 40 samples in batches of 8
Samples = list[int]
Begin = Callable[[], Iterator[Samples]]
Place = tuple[int, int]  # epoch, index


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Serves samples whose label is their number: in order as `validation`, shuffled as the others."""
    place = tmp_path_factory.mktemp("d")
    write_numbered_samples(place)
    served = {
        "source": {"kind": "npy", "path": str(place / "images.npy")},
        "labels": {"number": {"from": str(place / "numbers.npy"), "type": "int"}},
        "image": {"size": "stored"},
        "batch_size": 8,
        "shuffle": {"kind": "full"},
    }
    streams = {
        "train": served,
        "dropping": {**served, "drop_remainder": True},
        "validation": {**served, "shuffle": {"kind": "none"}},
    }
    with DaemonProcess(place, {"streams": streams}) as process:
        yield process


def write_numbered_samples(place: Path) -> None:
    np.save(place / "images.npy", np.zeros((8 * STEPS, 4, 4, 3), np.uint8))
    np.save(place / "numbers.npy", np.arange(8 * STEPS))


# --- the adapters


def begin_epochs(stream: Stream, evaluate: bool | None) -> Begin:
    """The stream itself; a program that evaluates says so."""
    none: Iterator[Batch] = iter(())
    return lambda: map(read_batch, next(stream.epochs(anew=bool(evaluate)), none))


def read_batch(batch: Batch) -> Samples:
    numbers: Samples = batch.labels["number"].tolist()
    return numbers


def begin_loader(stream: Stream, evaluate: bool | None) -> Begin:
    data = loader(stream, evaluate=evaluate)
    return lambda: map(read_step, data)


def begin_fit_data(stream: Stream, evaluate: bool | None) -> Begin:
    from streamd.frameworks.keras import fit_data  # noqa: PLC0415 - imports TensorFlow

    data = fit_data(stream, evaluate=evaluate)
    return lambda: map(read_step, data)


def read_step(step: tuple[Any, ...]) -> Samples:
    """The labels of a step of an adapter, which stand after the images."""
    numbers: Samples = np.asarray(step[1]).tolist()
    return numbers


@pytest.fixture(
    params=[
        pytest.param(begin_epochs, marks=pytest.mark.long),  # the loader stands on it
        begin_loader,
        pytest.param(begin_fit_data, marks=pytest.mark.train),
    ],
    ids=["epochs", "loader", "fit_data"],
)
def adapt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Stream, bool | None], Begin]:
    if request.param is begin_loader:
        monkeypatch.setitem(sys.modules, "torch", torch_fake.make())
    adapter: Callable[[Stream, bool | None], Begin] = request.param
    return adapter


@dataclass
class Seen:
    """What the passes of one stream saw: a list of batches for each."""

    begin: Begin
    passes: list[list[Samples]] = field(default_factory=list)

    def write_loops(self, loops: list[tuple[Any, ...]]) -> None:
        for name, *arguments in loops:
            getattr(self, name)(*arguments)

    def whole(self, count: int = 1) -> None:
        for _ in range(count):
            self.passes.append(list(self.begin()))

    def part(self, steps: int, count: int = 1) -> None:
        """Passes that are left after `steps` steps."""
        for _ in range(count):
            self.passes.append(list(islice(self.begin(), steps)))

    def by_next(self, steps: int, count: int = 1) -> None:
        """Loops that call `next` so often, and never ask for one more."""
        for _ in range(count):
            batches = self.begin()
            self.passes.append([next(batches) for _ in range(steps)])

    def by_zip(self, steps: int, count: int = 1) -> None:
        for _ in range(count):
            self.passes.append([batch for _, batch in zip(range(steps), self.begin(), strict=False)])

    def by_break(self, steps: int) -> None:
        self.passes.append([])
        for batch in self.begin():
            self.passes[-1].append(batch)
            if len(self.passes[-1]) == steps:
                break

    def until_an_error(self, steps: int) -> None:
        """A loop whose own step fails after so many, once the batch was handed out."""
        self.passes.append([])
        with suppress(ZeroDivisionError):
            for batch in self.begin():
                self.passes[-1].append(batch)
                _ = 1 // (steps - len(self.passes[-1]))
        assert len(self.passes[-1]) == steps


def places(epoch: int, first: int = 0, last: int = STEPS) -> list[Place]:
    return [(epoch, index) for index in range(first, last)]


def look_up(client: Client, name: str, wanted: Iterable[list[Place]]) -> list[list[Samples]]:
    """The samples of batches, each asked for by its place; every one once in all tests."""
    return [[_look_up_batch(client.endpoint, name, *place) for place in each] for each in wanted]


@cache
def _look_up_batch(endpoint: str, name: str, epoch: int, index: int) -> Samples:
    with streamd.connect(endpoint) as client:
        numbers: Samples = client.batch(name, epoch, index).sample_ids.tolist()
        return numbers


EPOCHS: Final = [places(epoch) for epoch in range(4)]
# Each row: the loops, as methods of Seen with their arguments, and the batches that each of them must see.
Rows = dict[str, tuple[list[tuple[Any, ...]], list[list[Place]]]]
TRAINING: Final[Rows] = {
    "whole epochs": ([("whole", 3)], EPOCHS[:3]),
    "exactly len() by next": ([("by_next", STEPS, 4)], EPOCHS),
    "exactly len() by islice": ([("part", STEPS, 4)], EPOCHS),
    "exactly len() by zip": ([("by_zip", STEPS, 4)], EPOCHS),
    "exactly len() by break": ([("by_break", STEPS)] * 3, EPOCHS[:3]),
    "exactly len() and whole": ([("by_next", STEPS), ("whole",), ("part", STEPS)], EPOCHS[:3]),
    "a break": ([("by_break", 2), ("whole", 2)], [places(0, 0, 2), places(0, 2), places(1)]),
    "an error in the loop": (
        [("until_an_error", 2), ("until_an_error", 3), ("whole",)],
        [places(0, 0, 2), places(0, 2), places(1)],
    ),
    "a limit": ([("part", 2, 4)], [places(0, 0, 2), places(0, 2, 4), places(0, 4), places(1, 0, 2)]),
}
EVALUATION: Final[Rows] = {
    "whole passes": ([("whole", 3)], [places(0)] * 3),
    "a sanity check": ([("by_break", 2), ("whole", 2)], [places(0, 0, 2), places(0), places(0)]),
    "a limit": ([("part", 2, 3)], [places(0, 0, 2)] * 3),
    "exactly len()": ([("by_next", STEPS, 3)], [places(0)] * 3),
    "an error in the loop": ([("until_an_error", 2), ("whole",)], [places(0, 0, 2), places(0)]),
}


QUICK_ROWS: Final = frozenset({"exactly len() by next", "a break"})


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row in QUICK_ROWS else pytest.mark.long) for row in TRAINING]
)
def test_passes_that_train_are_one_epoch_after_the_other(client: Client, adapt: Any, row: str) -> None:
    loops, wanted = TRAINING[row]
    with client.subscribe("train") as stream:
        seen = Seen(adapt(stream, None))
        seen.write_loops(loops)
        ended = [each[0][0] for each in wanted if each and each[-1][1] == STEPS - 1]
        assert [(each.epoch, each.complete, each.ok) for each in stream.receipts] == [(n, True, True) for n in ended]
    assert seen.passes == look_up(client, "train", wanted)


@pytest.mark.parametrize(
    ("name", "evaluate"), [("validation", None), pytest.param("train", True, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("row", EVALUATION)
def test_passes_that_evaluate_see_the_same_samples_each_time(
    client: Client, adapt: Any, row: str, name: str, evaluate: bool | None
) -> None:
    loops, wanted = EVALUATION[row]
    with client.subscribe(name) as stream:
        seen = Seen(adapt(stream, True if adapt is begin_epochs else evaluate))
        seen.write_loops(loops)
    assert seen.passes == look_up(client, name, wanted)
    told = [(each.epoch, each.steps, each.complete, each.ok) for each in stream.receipts]
    assert told == [(0, len(each), len(each) == STEPS, True) for each in wanted]


def test_a_stream_without_shuffle_trains_when_told_to(client: Client, adapt: Any) -> None:
    with client.subscribe("validation") as stream:
        seen = Seen(adapt(stream, False))
        seen.part(2)
        seen.whole(2)
        assert stream.epoch == 2
    assert seen.passes == look_up(client, "validation", [places(0, 0, 2), places(0, 2), places(1)])


def test_a_validation_in_between_changes_nothing(client: Client, adapt: Any) -> None:
    with client.subscribe("train") as train, client.subscribe("validation") as validation:
        trained, validated = Seen(adapt(train, None)), Seen(adapt(validation, True))
        for limit in (2, STEPS, STEPS):
            trained.by_next(STEPS)
            validated.part(limit)
    assert trained.passes == look_up(client, "train", EPOCHS[:3])
    assert validated.passes == look_up(client, "validation", [places(0, 0, 2), places(0), places(0)])


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("by_seek", [False, pytest.param(True, marks=pytest.mark.long)], ids=["resume", "seek"])
@pytest.mark.parametrize("steps", [2, STEPS], ids=["within an epoch", "at its last batch"])
def test_the_first_pass_after_a_token_goes_on_there(
    client: Client, adapt: Any, evaluate: bool, by_seek: bool, steps: int
) -> None:
    with client.subscribe("train") as begun:
        Seen(adapt(begun, None)).by_next(steps)
        token = begun.token
    with client.subscribe("train", resume=None if by_seek else token) as stream:
        seen = Seen(adapt(stream, evaluate))
        if by_seek:
            seen.part(1)
            stream.seek(token)
            seen.passes.clear()
        seen.whole()
        seen.part(STEPS)
    there = (0, 2) if steps == 2 else (1, 0)
    then = there[0] if evaluate else there[0] + 1
    assert seen.passes == look_up(client, "train", [places(*there), places(then)])


@pytest.mark.parametrize("evaluate", [False, True])
def test_the_epochs_of_a_subscription_are_whole_passes(client: Client, adapt: Any, evaluate: bool) -> None:
    with client.subscribe("train", epochs=2) as stream:
        seen = Seen(adapt(stream, evaluate))
        seen.part(1)
        seen.whole()
        seen.by_next(STEPS)
        for _ in range(2):
            if adapt is begin_epochs:
                assert list(seen.begin()) == []
            else:
                with pytest.raises(ConfigError, match="'train' has no epoch left: subscribe with epochs=None"):
                    seen.begin()
    # A pass that was begun anew leaves the one before out of account.
    whole = [places(0), places(0)] if evaluate else [places(0, 1), places(1)]
    assert seen.passes == look_up(client, "train", [places(0, 0, 1), *whole])


def test_two_ranks_share_each_epoch_also_by_exactly_len(client: Client, adapt: Any) -> None:
    wish: dict[str, Any] = {"world": 2, "uneven": "drop"}
    with client.subscribe("train", rank=0, **wish) as one, client.subscribe("train", rank=1, **wish) as other:
        assert len(one) == len(other) == 2
        seen = [Seen(adapt(stream, None)) for stream in (one, other)]
        for each in seen:
            each.by_next(2, 3)
    for rank, each in enumerate(seen):
        wanted = [[(epoch, rank), (epoch, 2 + rank)] for epoch in range(3)]
        assert each.passes == look_up(client, "train", wanted)
        assert [(receipt.dropped, receipt.complete) for receipt in one.receipts] == [(8, True)] * 3


@pytest.mark.parametrize(
    ("name", "size", "steps"),
    [pytest.param("train", 4, 10, marks=pytest.mark.long), ("train", 16, 3), ("dropping", 16, 2)],
)
def test_an_epoch_of_another_batch_size_is_over_with_its_last_batch(
    client: Client, adapt: Any, name: str, size: int, steps: int
) -> None:
    with client.subscribe(name, batch_size=size) as stream:
        assert len(stream) == steps
        seen = Seen(adapt(stream, None))
        seen.by_next(steps, 2)
        seen.whole()
        assert [(each.epoch, each.complete, each.ok) for each in stream.receipts] == [(n, True, True) for n in range(3)]
    flat = [[number for batch in each for number in batch] for each in seen.passes]
    epochs = look_up(client, name, EPOCHS[:3])
    assert flat == [[number for batch in each for number in batch][: steps * size] for each in epochs]


def test_threads_share_the_batches_of_a_pass_and_each_goes_to_one_of_them(client: Client, adapt: Any) -> None:
    def pull() -> None:
        got.extend(shared)

    with client.subscribe("train") as stream:
        begin = adapt(stream, None)
        for epoch in range(2):
            got, shared = list[Samples](), begin()
            threads = [threading.Thread(target=pull) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(got) == sorted(look_up(client, "train", [places(epoch)])[0])
        assert [receipt.ok for receipt in stream.receipts] == [True, True]


def test_a_pass_that_was_begun_anew_ends_the_one_before(client: Client, adapt: Any) -> None:
    with client.subscribe("validation") as stream:
        begin = adapt(stream, True)
        first, second = begin(), begin()
        next(second)
        with pytest.raises(StreamdError, match="this pass over stream 'validation' is over: another one has begun"):
            next(first)
        assert len(list(second)) == STEPS - 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_begin_a_pass_and_its_parents_goes_on(client: Client, adapt: Any) -> None:
    def use_it() -> None:
        for use in (begin, lambda: next(batches)):
            with pytest.raises(ForkedClientError):
                list(use())
        assert stream.receipts == []

    with client.subscribe("train") as stream:
        begin = adapt(stream, None)
        batches = begin()
        seen = [next(batches)]
        if adapt is not begin_fit_data:  # TensorFlow's own threads do not survive a fork
            assert in_a_forked_child(use_it) == 0
        seen += batches
    assert [seen] == look_up(client, "train", [places(0)])


# --- the loader's state


@pytest.fixture
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_fake.make())


def numbers_of(steps: Iterable[tuple[Any, Any]]) -> Samples:
    return [number for _, labels in steps for number in labels.tolist()]


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("taken", [0, 2, 4, 5, 7])
@pytest.mark.parametrize("world", [1, 2])
def test_a_loaders_state_continues_a_training_in_any_world(client: Client, taken: int, world: int) -> None:
    with client.subscribe("train") as stream:
        before = loader(stream)
        for steps in [STEPS] * (taken // STEPS) + [taken % STEPS]:
            list(islice(before, steps))
        state = before.state_dict()
    got = list[Samples]()
    for rank in range(world):
        with client.subscribe("train", rank=rank, world=world, uneven="drop") as stream:
            data = loader(stream)
            list(islice(data, 1))  # a loader that was used is moved too
            data.load_state_dict(state)
            assert data.state_dict() == state
            got.append(numbers_of(data))
    epoch, index = divmod(taken, STEPS)
    left = places(epoch, index)[: (STEPS - index) // world * world] or places(epoch + 1)[: STEPS // world * world]
    wanted = look_up(client, "train", [left[rank::world] for rank in range(world)])
    assert got == [[number for batch in each for number in batch] for each in wanted]


@pytest.mark.usefixtures("_torch")
def test_a_state_that_is_not_a_loaders_is_refused(client: Client) -> None:
    with client.subscribe("train") as stream, client.subscribe("validation") as validation:
        data = loader(stream)
        with pytest.raises(ConfigError, match="not saved by streamd's loader: it has 'sampler', and no 'streamd'"):
            data.load_state_dict({"sampler": 3})
        with pytest.raises(TokenError, match="belongs to stream 'validation', not to 'train'"):
            data.load_state_dict(loader(validation).state_dict())


@pytest.mark.usefixtures("_torch")
def test_set_epoch_moves_forward_only(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    seen = []
    with client.subscribe("train", epochs=6) as stream:
        data = loader(stream)
        for epoch in (0, 1, 3):
            data.set_epoch(epoch)
            seen.append(numbers_of(data))
        seen.append(numbers_of(islice(data, 2)))
        assert capfd.readouterr().err == ""
        for epoch in (4, 3, 2):  # the same epoch goes on; earlier ones are left alone
            data.set_epoch(epoch)
            seen.append(numbers_of(islice(data, 1)))
        assert capfd.readouterr().err.count("set_epoch(3) changes nothing: stream 'train' is at epoch 4") == 1
        data.set_epoch(5)
        seen.append(numbers_of(data))
        data.set_epoch(6)
        with pytest.raises(ConfigError, match="has no epoch 6: the subscription ends after 6, counted from 0"):
            iter(data)
    parts = [places(0), places(1), places(3), places(4, 0, 2), *(places(4, n, n + 1) for n in (2, 3, 4)), places(5)]
    wanted = look_up(client, "train", parts)
    assert seen == [[number for batch in each for number in batch] for each in wanted]
    told = [(each.epoch, each.complete, each.ok) for each in stream.receipts]
    assert told == [(epoch, True, True) for epoch in (0, 1, 3, 4, 5)]


@pytest.mark.usefixtures("_torch")
def test_set_epoch_holds_for_a_pass_that_was_begun_and_not_asked(client: Client) -> None:
    """Lightning makes the iterator first, and says the epoch then, to the loader's sampler."""
    with client.subscribe("train") as stream:
        data = loader(stream)
        passes = [list(islice(data, 2))]
        for epoch in (1, 3):
            begun = iter(data)
            data.sampler.set_epoch(epoch)
            passes.append(list(islice(begun, STEPS)))
        assert not hasattr(loader(stream, evaluate=True), "sampler")
    assert [[read_step(step) for step in each] for each in passes] == look_up(
        client, "train", [places(0, 0, 2), places(1), places(3)]
    )


@pytest.mark.usefixtures("_torch")
def test_a_loader_that_evaluates_ignores_set_epoch(client: Client) -> None:
    with client.subscribe("validation") as stream:
        data = loader(stream)
        for epoch in (0, 3):
            data.set_epoch(epoch)
            assert numbers_of(data) == list(range(8 * STEPS))
        assert {each.epoch for each in stream.receipts} == {0}


@pytest.mark.parametrize("copy_it", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_copy_of_a_client_or_a_stream_is_refused_with_what_to_write(
    client: Client, copy_it: Callable[[object], object]
) -> None:
    with client.subscribe("train") as stream:
        for each, remedy in ((client, r"streamd\.connect\('ipc:.*'\)  in"), (stream, r"\.subscribe\('train'\)  in")):
            with pytest.raises(NoCopyError, match=rf"can be neither pickled nor copied: write  .*{remedy} the other"):
                copy_it({"held": each} if copy_it is not copy.copy else each)


@pytest.mark.train
def test_a_copy_of_fit_data_or_of_a_callback_with_a_place_is_refused_with_what_to_write(
    client: Client, tmp_path: Path
) -> None:
    from streamd.frameworks.keras import NanGuard, ResumeCallback, fit_data  # noqa: PLC0415 - imports TensorFlow

    with client.subscribe("train") as stream:
        data = fit_data(stream)
        guard, resume = NanGuard(data, client), ResumeCallback(data, tmp_path)
        assert copy.deepcopy(guard) is not guard  # it has settings only, and refers to the same data and client
        for each in (data, guard, resume):
            for copy_it in (pickle.dumps,) if each is guard else (pickle.dumps, copy.deepcopy):
                with pytest.raises(NoCopyError, match=r"in the other process or trial|for each trial"):
                    copy_it(each)
