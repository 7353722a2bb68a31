"""Where each call of Keras's methods reads a stream: `fit` goes on, `evaluate` and `predict` begin at the first.

`backends` finds out which of them asks; here it is seen only whether an earlier one is still running.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from threading import get_ident
from types import FrameType
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self

from streamd.errors import ConfigError, ReceiptError
from streamd.frameworks.model_inputs import FeedBatch, FeedStream


class _KerasCall(NamedTuple):
    """A method of Keras's that has begun to read a stream.

    `thread` and `frame` tell it from others that run at the same time; Keras's `iterator` lives no longer than the
    call, unless an error of it is kept.
    """

    method: str
    thread: int
    frame: int
    iterator: weakref.ref[Any]

    def is_running_in_other_thread(self) -> bool:
        """Whether another thread has the frame on its stack still, as it has not that of a call that failed."""
        frame = None
        if self.thread != get_ident():
            frame = sys._current_frames().get(self.thread)  # noqa: SLF001 - nothing else shows the stacks of threads
        while frame is not None and (id(frame), frame.f_code.co_name) != (self.frame, self.method):
            frame = frame.f_back
        return frame is not None


class _PresentEpoch:
    """The rest of the stream's present epoch, run to its end, where the stream makes its receipt, with its last batch.

    Keras stops asking one step before that end. Not a generator, which would hold each batch until the next is wanted.
    """

    def __init__(self, batches: Iterator[FeedBatch], stream: FeedStream) -> None:
        self._batches = batches
        self._stream = stream
        self._make_token: Callable[[], str] = partial(str, stream.token)

    def make_token(self) -> str:
        """The token of the place that the last of these batches has left the stream at."""
        return self._make_token()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FeedBatch:
        batch = next(self._batches)
        self._make_token = batch.make_token  # before the wait below, which may be interrupted
        if not self._stream.steps_left:
            extra = next(self._batches, None)
            if extra is not None:
                raise ReceiptError(
                    f"epoch {extra.epoch} has more steps than announced: {extra.index} came after its end"
                )
        return batch


class KerasReader:
    """A stream as Keras's methods read it, one for all that `fit_data` makes of the stream.

    `evaluate` and `predict` take the stream away from where `fit`, or a loop of yours, will go on, and bring it back.
    """

    def __init__(self, stream: FeedStream) -> None:
        self.stream = stream
        self._fit_batches = self._iterate_batches()
        self._fit_place: str | None = None  # where fit goes on, while the stream is elsewhere, ...
        self._make_parked_token: Callable[[], str] | None = (
            None  # ... and where a call of another method has left it so far
        )
        self._evaluated: Iterator[FeedBatch] | None = None  # what `restart_stream` has given last
        self._is_untouched = False  # whether that place of `fit` is the subscription's beginning
        self._calls: list[_KerasCall] = []

    def seek(self, token: str, *, after: Literal["step", "epoch"] = "step") -> None:
        """`fit` goes on behind the batch whose token this is, or its epoch. Raises TokenError for another stream's."""
        self.stream.seek(token, after=after)
        self._forget_fit_place()

    def register_keras_call(self, running: list[FrameType], iterator: weakref.ref[Any] | None) -> str:
        """The method that begins to read, or begins an epoch: the innermost of `running`; "fit" for a loop of yours.

        Raises ConfigError when that would take the stream away from another call.
        """
        if not running or iterator is None:
            return "fit"
        asking, *outer = running
        call = _KerasCall(asking.f_code.co_name, get_ident(), id(asking), iterator)
        for each in self._list_running_calls(outer):
            if (each.method, call.method) != ("fit", "fit"):
                self._raise_stream_in_use(call.method, each.method)
        if call not in self._calls:
            self._calls.append(call)
            if call.method == "fit" and getattr(asking.f_locals.get("val_x"), "reader", None) is self:
                self._raise_stream_in_use("validation", "fit")  # now, and not after an epoch
        return call.method

    def check_not_in_use(self, what: str, running: list[FrameType]) -> None:
        """Raises ConfigError when a call, in this thread one of those `running`, reads what `what` would take away."""
        for each in self._list_running_calls(running):
            self._raise_stream_in_use(what, each.method)

    def _list_running_calls(self, frames: list[FrameType]) -> list[_KerasCall]:
        """The calls that read this stream now: those of this thread are among these frames."""
        self._calls = [each for each in self._calls if each.iterator() is not None]
        here = {id(frame) for frame in frames}
        return [each for each in self._calls if each.frame in here or each.is_running_in_other_thread()]

    def _raise_stream_in_use(self, what: str, other: str) -> NoReturn:
        name = self.stream.spec.name
        raise ConfigError(
            f"{what} would take stream {name!r} away from the {other} that reads it, and begin at another batch: give "
            f"{what} a subscription of its own, as in  fit_data(client.subscribe({name!r}))"
        )

    def continue_fit_batches(self, *, whole: bool) -> Iterator[FeedBatch]:
        """For `fit`: the rest of the stream's present epoch; all batches if not `whole`."""
        self._return_to_fit_place()
        return next(self._iterate_stream_epochs()) if whole else self._fit_batches

    def restart_stream(self) -> Iterator[FeedBatch]:
        """For `evaluate` and `predict`: the subscription's first epoch."""
        self._forget_place_if_moved()
        if self._fit_place is None:
            self._fit_place = self.stream.token
        self._make_parked_token = None
        self.stream.rewind()
        self._is_untouched = self._fit_place == self.stream.token
        present = next(self._iterate_stream_epochs())
        self._make_parked_token = present.make_token  # from now on: an interrupted call has no end
        self._evaluated = present
        return present

    def is_evaluating(self, batches: Iterator[FeedBatch]) -> bool:
        """Whether the stream is where these batches of `restart_stream` have left it, and nobody has moved it since."""
        is_there = self._make_parked_token is not None and self._make_parked_token() == self.stream.token
        return batches is self._evaluated and is_there

    def end_evaluation(self) -> None:
        """`evaluate` or `predict` is over: what is likely to be read next can be made meanwhile."""
        self._evaluated = None
        if self._is_untouched:
            self.stream.rewind()
            self._make_parked_token = partial(str, self.stream.token)
        else:
            self._return_to_fit_place()

    def _return_to_fit_place(self) -> None:
        self._forget_place_if_moved()
        if self._fit_place is not None:
            is_within_epoch = 0 < self.stream.steps_left < len(self.stream)  # whose account is not that of `fit`
            if is_within_epoch or self._fit_place != self.stream.token:
                self.stream.return_to(self._fit_place)
            self._forget_fit_place()

    def _forget_place_if_moved(self) -> None:
        """Whoever has moved the stream since the last call, by `seek` or a loop, wants `fit` to go on from there."""
        if self._make_parked_token is not None and self._make_parked_token() != self.stream.token:
            self._forget_fit_place()

    def _forget_fit_place(self) -> None:
        self._fit_place = self._make_parked_token = None
        self._is_untouched = False
        self._fit_batches = self._iterate_batches()

    def _iterate_batches(self) -> Iterator[FeedBatch]:
        return chain.from_iterable(self._iterate_stream_epochs())

    def _iterate_stream_epochs(self) -> Iterator[_PresentEpoch]:
        """The epochs of the stream. Raises ConfigError when the subscription has no more."""
        for batches in self.stream.epochs():
            yield _PresentEpoch(batches, self.stream)
        raise ConfigError(
            f"the subscription to {self.stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with as "
            "many epochs as all calls of fit take together"
        )


_readers: Final[weakref.WeakValueDictionary[int, KerasReader]] = weakref.WeakValueDictionary()


def find_or_create_reader(stream: FeedStream) -> KerasReader:
    """The same one for each stream. It keeps its stream, so no other has that identity while it lives."""
    reader = _readers.get(id(stream))
    if reader is None:
        reader = _readers[id(stream)] = KerasReader(stream)
    return reader
