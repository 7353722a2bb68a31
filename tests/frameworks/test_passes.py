"""The contract of passes, the same for every adapter: which samples each way of writing a loop sees, on a real daemon.

An adapter is a way to begin a pass over a stream; a row is a way to write a loop. What must be seen is asked of the
daemon batch by batch, by another way than any pass takes. torch and JAX have stand-ins here; the last test runs
the same rows with the libraries themselves.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from loader_process import python_of
from support import torch_fake
from support.daemon_process import DaemonProcess
from support.forked_child import in_a_forked_child
from support.keyboard_interrupts import Interrupter
from support.library_tests import run_tests_in

import streamd
from streamd.client import Batch, Client, Stream
from streamd.errors import ConfigError, ForkedClientError, NoCopyError, StreamdError, TokenError
from streamd.frameworks import import_library, jax
from streamd.frameworks.torch import loader

ENDPOINT: Final = os.environ.get("STREAMD_PASSES_ENDPOINT", "")  # of a daemon that runs, in a process of the libraries
STEPS: Final = 5  # an epoch: 40 samples in batches of 8
Samples = list[int]
Begin = Callable[[], Iterator[Samples]]
Place = tuple[int, int]  # epoch, index


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess | SimpleNamespace]:
    if ENDPOINT:
        yield SimpleNamespace(endpoint=ENDPOINT)
        return
    with serving_numbers(tmp_path_factory.mktemp("d")) as process:
        yield process


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[Client]:
    with streamd.connect(daemon.endpoint) as client:
        yield client


def serving_numbers(place: Path) -> DaemonProcess:
    """Serves samples whose label is their number: in order as `validation`, shuffled as the others."""
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
    return DaemonProcess(place, {"streams": streams})


def write_numbered_samples(place: Path) -> None:
    np.save(place / "images.npy", np.zeros((8 * STEPS, 4, 4, 3), np.uint8))
    np.save(place / "numbers.npy", np.arange(8 * STEPS))


# --- the adapters


class Epochs:
    """The passes of a stream itself; a program that evaluates says so."""

    def __init__(self, stream: Stream, evaluate: bool | None) -> None:
        self._stream, self._anew = stream, bool(evaluate)

    def __iter__(self) -> Iterator[Batch]:
        return next(self._stream.epochs(anew=self._anew), iter(()))


def wrap_in_fit_data(stream: Stream, evaluate: bool | None) -> Iterable[Any]:
    from streamd.frameworks.keras import fit_data  # noqa: PLC0415 - imports Keras

    return fit_data(stream, evaluate=evaluate)


def wrap_in_tf_data(stream: Stream, evaluate: bool | None) -> Iterable[Any]:
    """As docs/models.md writes it: without its option, tf.data reads ahead of the loop."""
    tf, epochs = import_library("tensorflow", "train", "a test"), Epochs(stream, evaluate)
    signature = tf.TensorSpec((None,), tf.int64)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    numbers = tf.data.Dataset.from_generator(
        lambda: (batch.labels["number"] for batch in epochs), output_signature=signature
    )
    dataset: Iterable[Any] = numbers.with_options(options)
    return dataset


def read_batch(batch: Batch) -> Samples:
    numbers: Samples = batch.labels["number"].tolist()
    return numbers


def read_step(step: tuple[Any, ...]) -> Samples:
    """The labels of a step of an adapter, which stand after the images."""
    return read_tensor(step[1])


def read_tensor(numbers: Any) -> Samples:
    found: Samples = np.asarray(numbers).tolist()
    return found


@dataclass(frozen=True)
class Adapter:
    """A way to write a loop over a stream: `wrap(stream, evaluate)` is what the loop is over.

    `has_errors`: the data raise errors of their own at the end of a subscription, and when they are copied.
    """

    name: str
    wrap: Callable[[Stream, bool | None], Iterable[Any]]
    read: Callable[[Any], Samples]
    has_errors: bool = False

    def __call__(self, stream: Stream, evaluate: bool | None) -> Begin:
        data = self.wrap(stream, evaluate)
        return lambda: map(self.read, data)


ADAPTERS: Final = {
    each.name: each
    for each in (
        Adapter("epochs", Epochs, read_batch),
        Adapter("loader", lambda stream, evaluate: loader(stream, evaluate=evaluate), read_step, has_errors=True),
        Adapter("jax", Epochs, lambda batch: read_tensor(jax.array(batch.labels)["number"])),
        Adapter("fit_data", wrap_in_fit_data, read_step, has_errors=True),
        Adapter("tf_data", wrap_in_tf_data, read_tensor),
    )
}
MARKS: Final = {
    "epochs": pytest.mark.long,
    "jax": pytest.mark.long,
    "fit_data": pytest.mark.train,
    "tf_data": pytest.mark.train,
}
# TensorFlow's own threads do not survive a fork, and it tells of an error in a generator by one of its own.
OF_TENSORFLOW: Final = {"fit_data", "tf_data"}


STAND_INS: Final = {"loader": ("torch", torch_fake.make()), "jax": ("jax", SimpleNamespace(device_put=np.asarray))}


@contextmanager
def library_of(name: str) -> Iterator[None]:
    """What stands in for the library of an adapter; the adapter itself does not depend on which it is."""
    with pytest.MonkeyPatch.context() as patched:
        if name in STAND_INS and not ENDPOINT:
            patched.setitem(sys.modules, *STAND_INS[name])
        yield


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in ADAPTERS])
def adapt(request: pytest.FixtureRequest) -> Iterator[Adapter]:
    with library_of(request.param):
        yield ADAPTERS[request.param]


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
        self._until(ZeroDivisionError, lambda left: 1 // left, steps)

    def until_ctrl_c(self, steps: int) -> None:
        self._until(KeyboardInterrupt, lambda left: os.kill(os.getpid(), 0 if left else signal.SIGINT), steps)

    def _until(self, error: type[BaseException], work: Callable[[int], object], steps: int) -> None:
        self.passes.append([])
        with suppress(error):
            for batch in self.begin():
                self.passes[-1].append(batch)
                work(steps - len(self.passes[-1]))
        assert len(self.passes[-1]) == steps

    def by_a_generator(self, steps: int) -> None:
        """A generator of the program's own over the pass, closed after so many."""
        batches = (batch for batch in self.begin())
        self.passes.append([next(batches) for _ in range(steps)])
        batches.close()

    def by_chunks(self, size: int) -> None:
        """Several batches a step, as for gradients that are accumulated."""
        batches = self.begin()
        self.passes.append([])
        while chunk := list(islice(batches, size)):
            self.passes[-1] += chunk

    def by_a_pool(self, threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            self.passes.append(list(pool.map(list, self.begin())))

    def by_first_batches(self, steps: int) -> None:
        """`next(iter(data))` in a loop: each begins a pass and leaves it."""
        self.passes.append([next(self.begin()) for _ in range(steps)])


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
    "Ctrl-C in the loop": ([("until_ctrl_c", 2), ("whole",)], [places(0, 0, 2), places(0, 2)]),
    "Ctrl-C in the last step": ([("until_ctrl_c", STEPS), ("whole",)], EPOCHS[:2]),
    "a limit": ([("part", 2, 4)], [places(0, 0, 2), places(0, 2, 4), places(0, 4), places(1, 0, 2)]),
    "a generator that is closed": ([("by_a_generator", 2), ("whole",)], [places(0, 0, 2), places(0, 2)]),
    "chunks": ([("by_chunks", 2)] * 2, EPOCHS[:2]),
    "a pool of threads": ([("by_a_pool", 3)] * 2, EPOCHS[:2]),
    "first batches": ([("by_first_batches", 7), ("whole",)], [places(0) + places(1, 0, 2), places(1, 2)]),
}
EVALUATION: Final[Rows] = {
    "whole passes": ([("whole", 3)], [places(0)] * 3),
    "a sanity check": ([("by_break", 2), ("whole", 2)], [places(0, 0, 2), places(0), places(0)]),
    "a limit": ([("part", 2, 3)], [places(0, 0, 2)] * 3),
    "exactly len()": ([("by_next", STEPS, 3)], [places(0)] * 3),
    "an error in the loop": ([("until_an_error", 2), ("whole",)], [places(0, 0, 2), places(0)]),
    "Ctrl-C in the loop": ([("until_ctrl_c", 2), ("whole",)], [places(0, 0, 2), places(0)]),
}

QUICK_ROWS: Final = frozenset({"exactly len() by next", "a break"})


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[] if row in QUICK_ROWS else pytest.mark.long) for row in TRAINING]
)
def test_passes_that_train_are_one_epoch_after_the_other(client: Client, adapt: Adapter, row: str) -> None:
    loops, wanted = TRAINING[row]
    with client.subscribe("train") as stream:
        seen = Seen(adapt(stream, None))
        seen.write_loops(loops)
        ended = [epoch for each in wanted for epoch, index in each if index == STEPS - 1]
        assert [(each.epoch, each.complete, each.ok) for each in stream.receipts] == [(n, True, True) for n in ended]
    assert seen.passes == look_up(client, "train", wanted)


@pytest.mark.parametrize(
    ("name", "evaluate"), [("validation", None), pytest.param("train", True, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("row", EVALUATION)
def test_passes_that_evaluate_see_the_same_samples_each_time(
    client: Client, adapt: Adapter, row: str, name: str, evaluate: bool | None
) -> None:
    loops, wanted = EVALUATION[row]
    with client.subscribe(name) as stream:
        seen = Seen(adapt(stream, True if adapt.wrap is Epochs or adapt.name == "tf_data" else evaluate))
        seen.write_loops(loops)
    assert seen.passes == look_up(client, name, wanted)
    told = [(each.epoch, each.steps, each.complete, each.ok) for each in stream.receipts]
    assert told == [(0, len(each), len(each) == STEPS, True) for each in wanted]


def test_a_stream_without_shuffle_trains_when_told_to(client: Client, adapt: Adapter) -> None:
    with client.subscribe("validation") as stream:
        seen = Seen(adapt(stream, False))
        seen.part(2)
        seen.whole(2)
        assert stream.epoch == 2
    assert seen.passes == look_up(client, "validation", [places(0, 0, 2), places(0, 2), places(1)])


def test_a_validation_in_between_changes_nothing(client: Client, adapt: Adapter) -> None:
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
    client: Client, adapt: Adapter, evaluate: bool, by_seek: bool, steps: int
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
def test_the_epochs_of_a_subscription_are_whole_passes(client: Client, adapt: Adapter, evaluate: bool) -> None:
    with client.subscribe("train", epochs=2) as stream:
        seen = Seen(adapt(stream, evaluate))
        seen.part(1)
        seen.whole()
        seen.by_next(STEPS)
        for _ in range(2):
            if adapt.has_errors:
                with pytest.raises(ConfigError, match="'train' has no epoch left: subscribe with epochs=None"):
                    seen.begin()
            else:
                assert list(seen.begin()) == []
    # A pass that was begun anew leaves the one before out of account.
    whole = [places(0), places(0)] if evaluate else [places(0, 1), places(1)]
    assert seen.passes == look_up(client, "train", [places(0, 0, 1), *whole])


def test_two_ranks_share_each_epoch_also_by_exactly_len(client: Client, adapt: Adapter) -> None:
    wish: dict[str, Any] = {"world": 2, "uneven": "drop"}
    with client.subscribe("train", rank=0, **wish) as one, client.subscribe("train", rank=1, **wish) as other:
        assert len(one) == len(other) == 2
        seen = [Seen(adapt(stream, None)) for stream in (one, other)]
        for each in seen:
            each.by_next(2, 3)
    for rank, each in enumerate(seen):
        assert each.passes == look_up(client, "train", [share(epoch, rank) for epoch in range(3)])
        assert [(receipt.dropped, receipt.complete) for receipt in one.receipts] == [(8, True)] * 3


def share(epoch: int, rank: int, first: int = 0) -> list[Place]:
    """What is left of an epoch from a place on for one of two ranks that drop the odd batch."""
    left = places(epoch, first)
    return left[: len(left) // 2 * 2][rank::2]


def test_the_rank_without_a_last_batch_gets_padding_or_no_batch(client: Client, adapt: Adapter) -> None:
    with client.subscribe("train", rank=1, world=2, uneven="pad") as stream:
        seen = Seen(adapt(stream, None))
        if adapt.name == "fit_data":
            with pytest.raises(StreamdError, match=r"it pads an uneven epoch.*subscribe with uneven=\"drop\""):
                seen.whole()
            return
        seen.whole(2)
        assert [(receipt.steps, receipt.complete) for receipt in stream.receipts] == [(3, True)] * 2
    trained = [[batch for batch in each if batch != [0] * 8] for each in seen.passes]
    assert trained == look_up(client, "train", [places(epoch)[1::2] for epoch in range(2)])


@pytest.mark.parametrize("taken", [2, pytest.param(4, marks=pytest.mark.long), STEPS, STEPS + 2])
def test_a_training_goes_on_exactly_with_another_number_of_ranks(client: Client, adapt: Adapter, taken: int) -> None:
    with client.subscribe("train") as stream:
        before = Seen(adapt(stream, None))
        for steps in [STEPS] * (taken // STEPS) + [taken % STEPS]:
            before.part(steps)
        token = stream.token
    epoch, index = divmod(taken, STEPS)
    parts = [share(epoch, rank, index) + share(epoch + 1, rank) for rank in range(2)]
    for rank in range(2):
        with client.subscribe("train", rank=rank, world=2, uneven="drop", resume=token) as stream:
            seen = Seen(adapt(stream, None))
            while stream.epoch < epoch + 2:
                seen.whole()
        assert [[batch for each in seen.passes for batch in each]] == look_up(client, "train", [parts[rank]])


@pytest.mark.long
@pytest.mark.timeout(240)  # it imports the adapter's library
def test_a_rank_in_a_spawned_process_takes_its_own_share(client: Client, adapt: Adapter) -> None:
    code = f"import test_passes; test_passes.train_as_rank_1({adapt.name!r}, {client.endpoint!r})"
    with client.subscribe("train", rank=0, world=2, uneven="drop") as stream:
        seen = Seen(adapt(stream, None))
        seen.by_next(2, 2)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    passes = [seen.passes, json.loads(done.stdout)]
    assert passes == [look_up(client, "train", [share(epoch, rank) for epoch in range(2)]) for rank in range(2)]


def train_as_rank_1(name: str, endpoint: str) -> None:
    with library_of(name), streamd.connect(endpoint) as client:
        with client.subscribe("train", rank=1, world=2, uneven="drop") as stream:
            seen = Seen(ADAPTERS[name](stream, None))
            seen.by_next(2, 2)
        sys.stdout.write(json.dumps(seen.passes))


@pytest.mark.parametrize(
    ("name", "size", "steps"),
    [pytest.param("train", 4, 10, marks=pytest.mark.long), ("train", 16, 3), ("dropping", 16, 2)],
)
def test_an_epoch_of_another_batch_size_is_over_with_its_last_batch(
    client: Client, adapt: Adapter, name: str, size: int, steps: int
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


def test_threads_share_the_batches_of_a_pass_and_each_goes_to_one_of_them(client: Client, adapt: Adapter) -> None:
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


def test_a_pass_that_was_begun_anew_ends_the_one_before(client: Client, adapt: Adapter) -> None:
    with client.subscribe("validation") as stream:
        begin = adapt(stream, True)
        first = begin()
        next(first)
        second = begin()
        next(second)
        with pytest.raises(Exception, match=IS_OVER.format("validation")):
            next(first)
        assert len(list(second)) == STEPS - 1


IS_OVER: Final = "this pass over stream '{}' is over: another one has begun"


def test_an_evaluation_takes_the_stream_from_a_loop_that_trains_and_says_so(client: Client, adapt: Adapter) -> None:
    with client.subscribe("train") as stream:
        seen, evaluated = Seen(adapt(stream, None)), Seen(adapt(stream, True))
        training = seen.begin()
        seen.passes.append([next(training)])
        evaluated.whole()
        with pytest.raises(Exception, match=IS_OVER.format("train")):
            next(training)
        if adapt.name != "fit_data":  # which goes back by itself
            with pytest.raises(Exception, match=r"has moved stream 'train'.*a subscription of its own"):
                seen.whole()
            assert (stream.epoch, stream.receipts[0].complete, stream.receipts[0].steps) == (1, False, 1)
            stream.seek(client.batch("train", 0, 0).token)
        seen.whole(2)
    assert evaluated.passes == look_up(client, "train", [places(0)])
    assert seen.passes == look_up(client, "train", [places(0, 0, 1), places(0, 1), places(1)])


# What is called between the stream's batch and the loop's.
ON_THE_WAY: Final = tuple(
    f"/streamd/{name}.py"
    for name in (
        *("client/stream", "client/batch", "frameworks/dlpack", "frameworks/model_inputs"),
        *("frameworks/torch/__init__", "frameworks/keras/adapter", "frameworks/keras/calls"),
    )
)


@pytest.mark.parametrize("every", [29, pytest.param(3, marks=pytest.mark.long)])
def test_ctrl_c_at_any_moment_of_a_pass_loses_and_repeats_no_batch(client: Client, adapt: Adapter, every: int) -> None:
    interrupts, got = 0, list[Samples]()
    with client.subscribe("train") as stream:
        begin = adapt(stream, None)
        batches = begin()
        for moment in range(1, 170, every):
            try:
                step = Interrupter(moment, ON_THE_WAY).call(partial(next, batches, None))
            except KeyboardInterrupt:
                interrupts += 1
                continue
            if step is None:
                batches = begin()
            else:
                got.append(step)
    assert got == [batch for each in look_up(client, "train", map(places, range(20))) for batch in each][: len(got)]
    assert interrupts > 40 // every or adapt.name == "tf_data"  # whose own threads take the batches


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.* was called:RuntimeWarning")  # JAX says so
def test_a_forked_child_cannot_begin_a_pass_and_its_parents_goes_on(client: Client, adapt: Adapter) -> None:
    def use_it() -> None:
        for use in (begin, lambda: next(batches)):
            with pytest.raises(ForkedClientError):
                list(use())
        assert stream.receipts == []

    with client.subscribe("train") as stream:
        begin = adapt(stream, None)
        batches = begin()
        seen = [next(batches)]
        if adapt.name not in OF_TENSORFLOW:
            assert in_a_forked_child(use_it) == 0
        seen += batches
    assert [seen] == look_up(client, "train", [places(0)])


@pytest.mark.parametrize("copy_it", [pickle.dumps, copy.deepcopy])
def test_a_copy_of_what_a_loop_is_over_is_refused_with_what_to_write(
    client: Client, adapt: Adapter, copy_it: Callable[[object], object]
) -> None:
    with client.subscribe("train") as stream:
        data = adapt.wrap(stream, None) if adapt.has_errors else stream
        for each in (data, iter(data)):
            with pytest.raises(NoCopyError, match=r"can be neither pickled nor copied: write  .*subscribe\('train'\)"):
                copy_it([each])


# --- the loader's state


@pytest.fixture
def _torch() -> Iterator[None]:
    with library_of("loader"):
        yield


def numbers_of(steps: Iterable[tuple[Any, Any]]) -> Samples:
    return [number for _, labels in steps for number in labels.tolist()]


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize("taken", [0, 4, STEPS])
def test_a_loaders_state_is_the_position_and_moves_a_loader_of_another_world(client: Client, taken: int) -> None:
    with client.subscribe("train") as stream:
        before = loader(stream)
        list(islice(before, taken))
        state = before.state_dict()
        assert state == {"streamd": stream.token}
    with client.subscribe("train", rank=1, world=2, uneven="drop") as stream:
        data = loader(stream)
        list(islice(data, 1))  # a loader that was used is moved too
        data.load_state_dict(state)
        assert data.state_dict() == state
        left = share(0, 1, taken) or share(1, 1)
        assert [[labels.tolist() for _, labels in data]] == look_up(client, "train", [left])


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
def test_a_copy_of_a_client_is_refused_with_what_to_write(client: Client, copy_it: Callable[[object], object]) -> None:
    with pytest.raises(
        NoCopyError, match=r"can be neither pickled nor copied: write  streamd\.connect\('ipc:.*'\)  in"
    ):
        copy_it(client)


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


@pytest.mark.trainers
@pytest.mark.timeout(600)  # it may have to install the libraries
@pytest.mark.parametrize("adapter", ["loader", "jax"])
def test_all_of_this_holds_of_the_library_itself(daemon: DaemonProcess, adapter: str) -> None:
    rows = ["-m", "not train and not trainers", "-k", adapter]
    environment = {"STREAMD_PASSES_ENDPOINT": daemon.endpoint, "JAX_PLATFORMS": "cpu"}
    run_tests_in(python_of("trainers"), [Path(__file__)], *rows, **environment)
