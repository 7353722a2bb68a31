"""What a training loop could reach if data were free: a few batches of a stream, held and given again and again.

    with streamd.connect() as client, client.subscribe("train") as stream:
        model.fit(fit_data(hold(stream)), epochs=2)

The rate of this, beside that of the stream itself, is what data cost. What such a run has learned is worth nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from streamd.client import Batch, Stream
from streamd.core.spec import StreamSpec
from streamd.errors import ConfigError, StreamdError

HELD_BATCHES: Final = 16  # batches: more than caches keep, so that each must be read from memory as a new one would
REPLAY_S: Final = 2.0  # enough for a rate; the user waits for it

TrainerStep = Callable[[Batch], Any]


@dataclass(frozen=True, slots=True)
class Replay:
    """Stands in for a stream: `held` again and again, in epochs of `steps`; without an end when `epochs` is None.

    Labels, weights, ids, bad rows and tokens are those of the batches held; `epoch` and `index` count on.
    """

    held: Sequence[Batch]
    steps: int
    epochs_wanted: int | None = None
    world: int = 1

    @property
    def spec(self) -> StreamSpec:
        return self.held[0].spec

    def __len__(self) -> int:
        """Steps of a whole epoch, as many as the stream's."""
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        """All batches of all epochs."""
        return itertools.chain.from_iterable(self.epochs())

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """One iterator an epoch."""
        numbers = itertools.count() if self.epochs_wanted is None else range(self.epochs_wanted)
        return map(self._replay_epoch, numbers)

    @property
    def steps_left(self) -> int:
        """Those of a whole epoch: each time that epochs are asked for, one begins."""
        return self.steps

    @property
    def epochs_left(self) -> int | None:
        """Those that were wanted, each time that they are asked for."""
        return self.epochs_wanted

    def names(self, _: Iterable[int]) -> list[str]:
        """Raises StreamdError: what is held has left its daemon, which knows the files."""
        raise StreamdError("held batches have no file names: ask  client.names(STREAM, sample_ids)")

    @property
    def token(self) -> str:
        """None is needed, since this has no place."""
        return ""

    def seek(self, token: str | bytes, *, after: Literal["step", "epoch"] = "step") -> None:
        """Stays where it is: whatever a stream would go back to, comes again here."""

    def rewind(self) -> None:
        """Stays where it is, as above."""

    def return_to(self, token: str) -> None:
        """Stays where it is, as above."""

    def _replay_epoch(self, epoch: int) -> Iterator[Batch]:
        again = itertools.islice(itertools.cycle(self.held), self.steps)
        return (replace(batch, epoch=epoch, index=index) for index, batch in enumerate(again))


def hold(stream: Stream, batches: int = HELD_BATCHES, epochs: int | None = None) -> Replay:
    """Takes the stream's next batches, fewer where its epochs end before, and gives them for `epochs` epochs.

    They lie in memory of their own, so that none of the daemon's is held. Raises ConfigError when `batches` is no
    number of batches, StreamdError when the stream is at its end.
    """
    if batches < 1:
        raise ConfigError(f"cannot hold {batches} batches: a whole number, at least 1")
    held = [batch.copy() for batch in itertools.islice(stream, min(batches, len(stream)))]
    if not held:
        raise StreamdError(f"stream {stream.spec.name!r} is at its end, so there is nothing to hold: subscribe anew")
    return Replay(held, len(stream), epochs)


def measure_rate(held: Sequence[Batch], work: TrainerStep, at_least_s: float = REPLAY_S) -> float:
    """Samples a second that `work` takes when each batch is there already: over so many seconds, and each batch."""
    began_s, samples = time.monotonic(), 0
    for number, batch in enumerate(itertools.cycle(held), 1):
        work(batch)
        samples += len(batch)
        seconds = time.monotonic() - began_s
        if seconds >= at_least_s and number >= len(held):
            break
    return samples / seconds
