"""The rate that a training loop reaches when data cost nothing: a few batches of a stream, held and repeated.

    with streamd.connect() as client, client.subscribe("train") as stream:
        model.fit(fit_data(hold(stream)), epochs=2)

The difference between this rate and the stream's own is the cost of the data. The weights of such a run are useless.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from streamd.client import Batch, Stream
from streamd.core.receipt import Receipt
from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError, StreamdError

HELD_BATCHES: Final = 16  # batches: more than processor caches hold, so each is read from memory as a new one is
REPLAY_S: Final = 2.0  # long enough to measure a rate, short enough for a user who waits

TrainerStep = Callable[[Batch], Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """Takes a stream's place: repeats the batches `held` in epochs of `steps`, without end if `epochs_wanted` is None.

    Labels, weights, ids, bad rows and tokens are those of the held batches; `epoch` and `index` are counted anew.
    """

    held: Sequence[Batch]
    steps: int
    epochs_wanted: int | None = None
    rank: int = 0
    world: int = 1
    receipts: tuple[Receipt, ...] = ()

    @property
    def spec(self) -> StreamSpec:
        return self.held[0].spec

    def __len__(self) -> int:
        """The number of steps of a whole epoch, the same as the stream's."""
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over all batches of all epochs."""
        return itertools.chain.from_iterable(self.epochs())

    def epochs(self, *, anew: bool = False, convert: Callable[[Batch], Any] | None = None) -> Iterator[Iterator[Any]]:
        """Returns an iterator that yields one iterator for each epoch; held batches are the same ones `anew` or not."""
        del anew
        numbers = itertools.count() if self.epochs_wanted is None else range(self.epochs_wanted)
        passes = map(self._replay_epoch, numbers)
        return passes if convert is None else (map(convert, batches) for batches in passes)

    @property
    def epoch(self) -> int:
        """Always 0: held batches have no position."""
        return 0

    @property
    def steps_left(self) -> int:
        """The steps of a whole epoch, since each call of `epochs()` begins one."""
        return self.steps

    @property
    def epochs_left(self) -> int | None:
        """The number of epochs that each call of `epochs()` yields; None without end."""
        return self.epochs_wanted

    def end_epoch(self, limit_s: float | None = None) -> bool:
        """Does nothing: held batches have no receipts."""
        del limit_s
        return True

    def look_ahead(self, batches: int, *, anew: bool = False, token: str | None = None) -> list[Batch]:
        """Returns the first of the held batches."""
        del anew, token
        return list(self.held[:batches])

    def names(self, _: Iterable[int]) -> list[str]:
        """Raises StreamdError: held batches have no connection to the daemon, which knows the files."""
        raise StreamdError("held batches have no file names: get them with  client.names(STREAM, sample_ids)")

    @property
    def token(self) -> str:
        """Always "": held batches have no position."""
        return ""

    def seek(self, token: str | bytes, *, after: Literal["step", "epoch"] = "step") -> None:
        """Does nothing: held batches have no position."""

    def advance_to_epoch(self, epoch: int) -> None:
        """Does nothing: held batches have no position."""

    def rewind(self) -> None:
        """Does nothing: held batches have no position."""

    def return_to(self, token: str) -> None:
        """Does nothing: held batches have no position."""

    def _replay_epoch(self, epoch: int) -> Iterator[Batch]:
        again = itertools.islice(itertools.cycle(self.held), self.steps)
        return (replace(batch, epoch=epoch, index=index) for index, batch in enumerate(again))


def hold(stream: Stream, batches: int = HELD_BATCHES, epochs: int | None = None) -> Replay:
    """Copies the stream's next batches and returns a `Replay` that repeats them for `epochs` epochs.

    Takes `batches` batches, or fewer if an epoch or the subscription has fewer. They are copies, so none of the
    daemon's memory is held. Raises ConfigError when `batches` is below 1, StreamdError when the stream is at its end.
    """
    if batches < 1:
        raise ConfigError(f"cannot hold {batches} batches: give a whole number, at least 1")
    held = [batch.copy() for batch in itertools.islice(stream, min(batches, len(stream)))]
    if not held:
        raise StreamdError(f"stream {stream.spec.name!r} is at its end, so there is nothing to hold: subscribe again")
    return Replay(held, len(stream), epochs)


def measure_rate(held: Sequence[Batch], work: TrainerStep, at_least_s: float = REPLAY_S) -> float:
    """Returns the samples a second that `work` processes when every batch is at hand.

    Runs for at least `at_least_s` seconds, and over each held batch at least once.
    """
    began_s, samples = time.monotonic(), 0
    for number, batch in enumerate(itertools.cycle(held), 1):
        work(batch)
        samples += len(batch)
        seconds = time.monotonic() - began_s
        if seconds >= at_least_s and number >= len(held):
            break
    return samples / seconds
