"""The position at which each call reads a stream: `fit` and loops continue, `evaluate` and `predict` begin anew.

`frames` finds out which method requests a batch; this module decides whether an earlier call is still running.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from threading import get_ident
from types import FrameType
from typing import Any, Final, Literal, NamedTuple, NoReturn

from streamd.errors import ConfigError, ReceiptError
from streamd.frameworks.model_inputs import FeedBatch, FeedStream

ConvertBatch = Callable[[FeedBatch], Any]


def keep_batch(batch: FeedBatch) -> FeedBatch:
    """Returns the batch, where `fit` converts it itself."""
    return batch


class _ReadingCall(NamedTuple):
    """A Keras call that has begun to read a stream.

    `thread` and `frame` (an identity) distinguish it from other running calls. Keras's `iterator` lives only as long as
    the call, unless the caller keeps an error that the call raised.
    """

    method: str
    thread: int
    frame: int
    iterator: weakref.ref[Any]

    def is_running_in_other_thread(self) -> bool:
        """Returns whether another thread still has the call's frame on its stack; that of a failed call is gone."""
        frame = None
        if self.thread != get_ident():
            frame = sys._current_frames().get(self.thread)  # noqa: SLF001 - nothing else shows the stacks of threads
        while frame is not None and (id(frame), frame.f_code.co_name) != (self.frame, self.method):
            frame = frame.f_back
        return frame is not None


class _PresentEpoch:
    """The rest of the stream's present epoch. `steps` is what `convert` makes of its batches."""

    def __init__(self, stream: FeedStream, convert: ConvertBatch, *, anew: bool) -> None:
        self._stream = stream
        self._convert = convert
        self._was_last = False  # the batch before was the epoch's last, as the stream announced
        self.steps = next(stream.epochs(anew=anew, convert=self.take), None)  # None behind the last epoch
        self._make_token: Callable[[], str] = partial(str, stream.token)

    def make_token(self) -> str:
        """Returns the token of the position at which the last of these batches left the stream."""
        return self._make_token()

    def take(self, batch: FeedBatch) -> Any:
        """Converts a batch. Called by the stream, which gives the same batch again if an interrupt comes before."""
        if self._was_last:
            raise ReceiptError(
                f"epoch {batch.epoch} has more steps than announced: batch {batch.index} came after its end"
            )
        step = self._convert(batch)
        was_last = not self._stream.steps_left
        # Behind this there is no call, at which an interrupt could be handled: what is not handed out is not noted.
        self._make_token, self._was_last = batch.make_token, was_last
        return step


class KerasReader:
    """Shares a stream among Keras's methods; all adapters of a stream use the same reader.

    The stream is either at the position of `fit` (`_fit_place` is None), or was moved by `evaluate`, `predict` or a
    loop that evaluates. `_fit_place` then has the token to return to. If the stream is no longer where the other method
    left it, the user has moved it since, and the saved position is given up.
    """

    def __init__(self, stream: FeedStream) -> None:
        self.stream = stream
        self._fit_place: str | None = None  # the token from which fit continues, while the stream is elsewhere
        self._make_parked_token: Callable[[], str] | None = None  # where another method has left the stream so far
        self._is_untouched = False  # the position of `fit` is the beginning of the subscription
        self._calls: list[_ReadingCall] = []

    def seek(self, token: str, *, after: Literal["step", "epoch"] = "step") -> None:
        """Makes `fit` continue after the token's batch, or after its epoch. Raises TokenError for another stream's."""
        self.stream.seek(token, after=after)
        self._forget_fit_place()

    def register_keras_call(self, running: list[FrameType], iterator: weakref.ref[Any] | None) -> str:
        """Registers the innermost of the `running` calls as a reader, and returns its method's name.

        Called when a call begins to read, and at each of its epochs. Returns "fit" for a user's own loop. Raises
        ConfigError when the call would take the stream away from another one.
        """
        if not running or iterator is None:
            return "fit"
        asking, *outer = running
        call = _ReadingCall(asking.f_code.co_name, get_ident(), id(asking), iterator)
        for each in self._list_running_calls(outer):
            if (each.method, call.method) != ("fit", "fit"):
                self._raise_stream_in_use(call.method, each.method)
        if call not in self._calls:
            self._calls.append(call)
            if call.method == "fit" and getattr(asking.f_locals.get("val_x"), "reader", None) is self:
                self._raise_stream_in_use("validation", "fit")  # at once, and not after the first epoch
        return call.method

    def check_not_in_use(self, what: str, running: list[FrameType]) -> None:
        """Raises ConfigError if a call reads the stream that `what` would take away.

        `running` has the frames of the calls in this thread.
        """
        for each in self._list_running_calls(running):
            self._raise_stream_in_use(what, each.method)

    def _list_running_calls(self, frames: list[FrameType]) -> list[_ReadingCall]:
        """Returns the calls that read this stream now; `frames` has the frames of calls in this thread."""
        self._calls = [each for each in self._calls if each.iterator() is not None]
        here = {id(frame) for frame in frames}
        return [each for each in self._calls if each.frame in here or each.is_running_in_other_thread()]

    def _raise_stream_in_use(self, what: str, other: str) -> NoReturn:
        name = self.stream.spec.name
        raise ConfigError(
            f"{what} would take stream {name!r} away from the {other} that is reading it, and would move it to "
            f"another batch: give {what} a subscription of its own, as in  fit_data(client.subscribe({name!r}))"
        )

    def continue_fit_batches(self, *, whole: bool, convert: ConvertBatch = keep_batch) -> Iterator[Any]:
        """Returns batches to train on: the rest of the stream's present epoch if `whole`, else those of all epochs."""
        self._return_to_fit_place()
        if whole:
            return self._begin_epoch(convert)[1]
        return chain.from_iterable(self._begin_epoch(convert)[1] for _ in repeat(None))

    def restart_stream(self, *, for_loop: bool = False, convert: ConvertBatch = keep_batch) -> Iterator[Any]:
        """Returns batches to evaluate: those of the subscription's first epoch.

        for_loop: a user's own loop evaluates. Its first pass after `resume=` or `seek` goes on there.
        """
        self._forget_place_if_moved()
        if self._fit_place is None:
            self._fit_place = self.stream.token
        self._make_parked_token = None
        if not for_loop:
            self.stream.rewind()
        present, steps = self._begin_epoch(convert, anew=for_loop)
        self._is_untouched = self._fit_place == self.stream.token
        # Set now, since a call that is interrupted never reports its end.
        self._make_parked_token = present.make_token
        return steps

    @property
    def fit_place(self) -> str:
        """The token from which `fit` continues."""
        self._forget_place_if_moved()
        return self.stream.token if self._fit_place is None else self._fit_place

    def end_evaluation(self) -> None:
        """Ends `evaluate` or `predict`, and moves the stream at once, so that the next batches are made meanwhile."""
        # If `fit` is at the beginning of the subscription, it and another evaluation begin at the same batch.
        if self._is_untouched:
            self.stream.rewind()
            self._make_parked_token = partial(str, self.stream.token)
        else:
            self._return_to_fit_place()

    def _return_to_fit_place(self) -> None:
        self._forget_place_if_moved()
        if self._fit_place is not None:
            self.stream.return_to(self._fit_place)
            self._forget_fit_place()

    def _forget_place_if_moved(self) -> None:
        """Gives up the saved position of `fit` if the user has moved the stream since, by `seek` or in a loop.

        `fit` then continues where the user has left the stream.
        """
        if self._make_parked_token is not None and self._make_parked_token() != self.stream.token:
            self._forget_fit_place()

    def _forget_fit_place(self) -> None:
        self._fit_place = self._make_parked_token = None
        self._is_untouched = False

    def _begin_epoch(self, convert: ConvertBatch, *, anew: bool = False) -> tuple[_PresentEpoch, Iterator[Any]]:
        """Begins the next epoch of the stream. Raises ConfigError after the subscription's last."""
        present = _PresentEpoch(self.stream, convert, anew=anew)
        if present.steps is not None:
            return present, present.steps
        raise ConfigError(
            f"the subscription to {self.stream.spec.name!r} has no epoch left: subscribe with epochs=None, or with as "
            "many epochs as all calls of fit and all loops take together"
        )


_readers: Final[weakref.WeakValueDictionary[int, KerasReader]] = weakref.WeakValueDictionary()


def find_or_create_reader(stream: FeedStream) -> KerasReader:
    """Returns the reader of a stream, always the same one."""
    # The key is an identity. A reader refers to its stream, so no other object can have that identity while it lives.
    reader = _readers.get(id(stream))
    if reader is None:
        reader = _readers[id(stream)] = KerasReader(stream)
    return reader
