"""Where Keras's methods begin to read a stream. test_frameworks_keras_calls tests the same through Keras."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from threading import Event, Thread

import pytest
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.client import Batch
from streamd.errors import ConfigError
from streamd.frameworks.keras.calls import KerasReader, find_or_create_reader

pytestmark = pytest.mark.train

LIMIT_S = 30.0


def make_stream() -> FakeStream:
    return FakeStream(make_spec(ANGLE))


def take(batches: Iterable[Batch], steps: int | None = None) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.index) for batch in islice(batches, steps)]


def evaluate(reader: KerasReader, steps: int | None = None) -> list[tuple[int, int]]:
    """The batches that a call of `evaluate` takes."""
    batches: Iterator[Batch] = reader.restart_stream()
    taken = take(batches, steps)
    reader.end_evaluation()
    return taken


def test_each_evaluation_begins_at_the_first_batch_and_has_its_own_receipt() -> None:
    stream = make_stream()
    reader = find_or_create_reader(stream)
    assert evaluate(reader, 2) == [(0, 0), (0, 1)]
    assert evaluate(reader) == [(0, 0), (0, 1), (0, 2)]
    assert evaluate(reader, 1) == [(0, 0)]
    assert [(each.complete, each.ok) for each in stream.receipts] == [(False, True), (True, True), (False, True)]


def test_fit_continues_where_it_was_before_an_evaluation() -> None:
    reader = find_or_create_reader(make_stream())
    assert take(reader.continue_fit_batches(whole=True), 2) == [(0, 0), (0, 1)]
    assert evaluate(reader, 1) == [(0, 0)]
    assert take(reader.continue_fit_batches(whole=True)) == [(0, 2)]
    assert evaluate(reader) == [(0, 0), (0, 1), (0, 2)]
    assert take(reader.continue_fit_batches(whole=False), 4) == [(1, 0), (1, 1), (1, 2), (2, 0)]


def test_an_evaluation_that_ends_where_fit_continues_has_its_own_receipt() -> None:
    stream = make_stream()
    reader = find_or_create_reader(stream)
    take(reader.continue_fit_batches(whole=True), 2)
    assert evaluate(reader, 2) == [(0, 0), (0, 1)]
    assert take(reader.continue_fit_batches(whole=True)) == [(0, 2)]
    assert [(each.steps, each.complete) for each in stream.receipts] == [(2, False), (2, False), (3, True)]


def test_a_users_own_loop_continues_where_it_was_before_an_evaluation() -> None:
    stream = make_stream()
    reader = find_or_create_reader(stream)
    loop = stream.epochs()
    assert take(next(loop), 2) == [(0, 0), (0, 1)]
    for _ in range(2):
        assert evaluate(reader, 1) == [(0, 0)]
    assert take(next(loop)) == [(0, 2)]
    evaluate(reader)
    assert take(next(loop)) == [(1, 0), (1, 1), (1, 2)]


def test_a_stream_waits_where_it_will_be_read_next() -> None:
    """The daemon prepares the next batches while nobody reads."""
    stream = make_stream()
    reader = find_or_create_reader(stream)
    evaluate(reader, 2)
    assert (stream.epoch, stream.index) == (0, 0)
    take(reader.continue_fit_batches(whole=True), 1)
    evaluate(reader, 2)
    assert (stream.epoch, stream.index) == (0, 1)
    assert stream.rewinds == 2


def test_fit_continues_from_a_seek_after_an_evaluation() -> None:
    stream = make_stream()
    reader = find_or_create_reader(stream)
    evaluate(reader)
    stream.seek("4:0")
    assert take(reader.continue_fit_batches(whole=True)) == [(4, 1), (4, 2)]
    evaluate(reader)
    stream.seek("6:1")
    evaluate(reader)
    assert take(reader.continue_fit_batches(whole=True)) == [(6, 2)]


@pytest.mark.parametrize("taken", [0, 2, 3])
def test_fit_continues_from_a_seek_after_an_interrupted_evaluation(taken: int) -> None:
    """Of such a one, no method of Keras's comes to its end."""
    stream = make_stream()
    reader = find_or_create_reader(stream)
    take(reader.continue_fit_batches(whole=True), 1)
    take(reader.restart_stream(), taken)
    stream.seek("4:0")
    assert take(reader.continue_fit_batches(whole=True)) == [(4, 1), (4, 2)]


@pytest.mark.parametrize("taken", [0, 2, 3])
def test_fit_continues_where_it_was_after_an_interrupted_evaluation(taken: int) -> None:
    reader = find_or_create_reader(make_stream())
    take(reader.continue_fit_batches(whole=True), 1)
    take(reader.restart_stream(), taken)
    assert take(reader.continue_fit_batches(whole=True)) == [(0, 1), (0, 2)]


class Asking:
    """Stands for Keras's iterator of a call."""


def begin(reader: KerasReader, asking: Asking) -> str:
    """Registers the calling frame, as a method of Keras does."""
    return reader.register_keras_call([sys._getframe(1)], weakref.ref(asking))


def test_a_stream_that_another_thread_reads_is_refused_while_its_call_runs() -> None:
    reader, asking, other = find_or_create_reader(make_stream()), Asking(), Asking()
    begun, over = Event(), Event()

    def fit() -> None:
        begin(reader, asking)
        begun.set()
        assert over.wait(LIMIT_S)

    def evaluate() -> str:
        return begin(reader, other)

    thread = Thread(target=fit)
    thread.start()
    assert begun.wait(LIMIT_S)
    try:
        with pytest.raises(ConfigError, match=r"evaluate would take stream 'train' away from the fit.*of its own"):
            evaluate()
    finally:
        over.set()
        thread.join()
    assert evaluate() == "evaluate"


def test_everything_made_of_one_stream_shares_its_reader() -> None:
    stream = make_stream()
    reader = find_or_create_reader(stream)
    assert find_or_create_reader(stream) is reader
    assert find_or_create_reader(make_stream()) is not reader
