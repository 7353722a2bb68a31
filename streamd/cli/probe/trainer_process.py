"""One trainer of `streamd probe`, which drains a stream: `python -m streamd.cli.probe.trainer_process REQUEST`.

When it has subscribed it prints a line and waits for one, so that all trainers begin together and no start-up time is
measured. It does the same when it has drained the stream, so that decoded batches can be counted before all trainers
replay together. At the end it prints one JSON object.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec

from streamd.client import Batch, connect
from streamd.core.epoch_timing import EpochTiming
from streamd.core.import_function import call_user_function, load_function
from streamd.core.receipt import Receipt
from streamd.errors import StreamdError
from streamd.headroom import REPLAY_S, TrainerStep, hold, measure_rate
from streamd.ipc.inherited_state import die_with_parent
from streamd.limits import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class TrainerRequest:
    """The task of the trainer `name`.

    `load` names the user's function, which is called with each batch; None touches every page instead.
    """

    stream: str
    endpoint: str
    epochs: int
    digest: bool = False
    load: str | None = None
    headroom: bool = False
    name: str = "probe 1"


_request_decoder: Final = msgspec.json.Decoder(TrainerRequest)


@dataclass(frozen=True, slots=True)
class DrainResult:
    """One trainer's account: samples, seconds from its first batch to its last, and the seconds of these spent waiting.

    `free_samples_per_s` is its rate on held batches; None if it was not requested.
    """

    samples: int
    seconds: float
    wait_s: float
    receipts: list[Receipt]
    digest: list[str]
    free_samples_per_s: float | None = None
    timings: list[EpochTiming] = field(default_factory=list)

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds if self.seconds else 0.0


def touch_image_pages(batch: Batch) -> None:
    """Reads one byte of every page of the images: the least that a trainer does with a batch."""
    batch.images.reshape(-1)[::PAGE_BYTES].sum()


def drain_stream(
    stream: str,
    endpoint: str,
    epochs: int,
    *,
    digest: bool,
    step: TrainerStep = touch_image_pages,
    on_ready: Callable[[], None] = lambda: None,
    name: str | None = None,
) -> DrainResult:
    """Drains `epochs` epochs in this process, and calls `step` with each batch; calls `on_ready` before the first."""
    digests: list[str] = []
    samples, first_s, last_s, wait_before_s = 0, 0.0, 0.0, 0.0
    with connect(endpoint) as client, client.subscribe(stream, epochs=epochs, name=name) as batches:
        on_ready()
        for epoch in batches.epochs():
            summing = hashlib.blake2b(digest_size=16) if digest else None
            for batch in epoch:
                step(batch)
                last_s = time.monotonic()
                if first_s:
                    samples += len(batch)
                else:
                    first_s, wait_before_s = last_s, batches.wait_s
                if summing is not None:
                    _add_batch_to_digest(summing, batch)
            if summing is not None:
                digests.append(summing.hexdigest())
        waited_s, accounts = batches.wait_s - wait_before_s, (batches.receipts, digests, None, batches.timings)
        return DrainResult(samples, last_s - first_s, waited_s, *accounts)


def _add_batch_to_digest(summing: hashlib.blake2b, batch: Batch) -> None:
    summing.update(batch.index.to_bytes(8, "little") + batch.sample_ids.tobytes() + batch.weights.tobytes())
    for name in sorted(batch.labels):
        summing.update(name.encode() + batch.labels[name].tobytes())
    summing.update(batch.images.data)


def replay_held_batches(request: TrainerRequest, result: DrainResult, step: TrainerStep) -> DrainResult:
    """Adds the rate of `step` on held batches to the account, measured for as long as the stream took, or REPLAY_S.

    Raises StreamdError when the stream was too short for a comparison.
    """
    if not result.seconds:
        raise StreamdError(
            f"stream {request.stream!r} has only one batch, which is too little to measure a rate: add  --epochs 2  "
            "or more"
        )
    with connect(request.endpoint) as client, client.subscribe(request.stream, name=request.name) as batches:
        held = hold(batches).held
    return replace(result, free_samples_per_s=measure_rate(held, step, min(result.seconds, REPLAY_S)))


class _StarterPipe:
    """The pipe to the process that started this one. Output that the user's function prints goes to stderr instead."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def write_to_starter(self, text: bytes) -> None:
        """Writes all of `text`. Raises SystemExit if nobody reads: the starter was interrupted and has ended."""
        try:
            while text:
                text = text[os.write(self._descriptor, text) :]
        except BrokenPipeError:
            raise SystemExit(1) from None

    def wait_for_other_trainers(self) -> None:
        self.write_to_starter(b"here\n")
        sys.stdin.readline()


def _load_trainer_step(load: str | None) -> TrainerStep:
    if load is None:
        return touch_image_pages
    return partial(call_user_function, load, load_function(load, "--load", "mytrainer:step"))


def _run_trainer_request(request: TrainerRequest, pipe: _StarterPipe) -> DrainResult:
    work = _load_trainer_step(request.load)
    ready = pipe.wait_for_other_trainers
    drained = drain_stream(
        request.stream,
        request.endpoint,
        request.epochs,
        digest=request.digest,
        step=work,
        on_ready=ready,
        name=request.name,
    )
    pipe.wait_for_other_trainers()
    return replay_held_batches(request, drained, work) if request.headroom else drained


def main() -> None:
    """Runs one trainer's process."""
    die_with_parent(os.getppid())
    pipe = _StarterPipe()
    try:
        drained = _run_trainer_request(_request_decoder.decode(sys.argv[1]), pipe)
    except StreamdError as error:
        sys.stderr.write(f"streamd probe: {error}\n")
        raise SystemExit(error.exit_status) from None
    pipe.write_to_starter(msgspec.json.encode(drained))


if __name__ == "__main__":
    main()
