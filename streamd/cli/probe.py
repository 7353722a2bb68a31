"""The measurement of `streamd probe`: several trainers, each in its own process, drain a stream at the same time."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Final, Literal

import msgspec

from streamd.client import Batch, connect
from streamd.core.epoch_timing import EpochTiming, format_timing_lines
from streamd.core.import_function import call_user_function, load_function
from streamd.core.receipt import Receipt
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.text import format_count
from streamd.errors import ConnectError, ReceiptError, RefusedError, StreamdError
from streamd.headroom import REPLAY_S, TrainerStep, hold, measure_rate
from streamd.ipc.child import start_child_of_thread
from streamd.ipc.endpoint import is_remote, split_host_port
from streamd.ipc.inherited_state import die_with_parent
from streamd.limits import CONNECT_TIMEOUT_S, MAX_CREDIT, PAGE_BYTES, REMOTE_CREDIT

# --- one trainer, which drains a stream: `python -m streamd.cli.probe REQUEST`
#
# When it has subscribed it prints a line and waits for one, so that all trainers begin together and no start-up time
# is measured. It does the same when it has drained the stream, so that decoded batches can be counted before all
# trainers replay together. At the end it prints one JSON object.


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
                    add_batch_to_digest(summing, batch)
            if summing is not None:
                digests.append(summing.hexdigest())
        waited_s, accounts = batches.wait_s - wait_before_s, (batches.receipts, digests, None, batches.timings)
        return DrainResult(samples, last_s - first_s, waited_s, *accounts)


def add_batch_to_digest(summing: hashlib.blake2b, batch: Batch) -> None:
    """Adds what a trainer is given of a batch: its place, sample ids, weights, labels and the pixels of its images."""
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


def main() -> None:
    """Runs one trainer's process."""
    die_with_parent(os.getppid())
    pipe = _StarterPipe()
    try:
        request = _request_decoder.decode(sys.argv[1])
        step, where = _load_trainer_step(request.load), (request.stream, request.endpoint, request.epochs)
        ready = pipe.wait_for_other_trainers
        drained = drain_stream(*where, digest=request.digest, step=step, on_ready=ready, name=request.name)
        pipe.wait_for_other_trainers()
        if request.headroom:
            drained = replay_held_batches(request, drained, step)
    except StreamdError as error:
        sys.stderr.write(f"streamd probe: {error}\n")
        raise SystemExit(error.exit_status) from None
    pipe.write_to_starter(msgspec.json.encode(drained))


# --- what a link to another host gives, and which bound was met: the decoding, the credit, or the link itself

LinkBound = Literal["daemon", "credit", "link"]
_LOOKS: Final = 5  # connections made to measure a round trip
_CREDIT_TRIPS: Final = 2  # credit lasts for so many round trips: one batch is reported while another is on its way
_NEAR_BOUND: Final = 0.8  # of what credit allows: a rate above it is bounded by it


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The rate in bytes a second, a round trip in seconds, what met its bound, and all of it in words."""

    bytes_per_s: float
    round_trip_s: float
    bound: LinkBound
    text: str


def describe_link(
    bytes_per_s: float, round_trip_s: float, trainers: int, batch_bytes: int, verdicts: Sequence[str]
) -> LinkReport:
    """Says what bounds the rate of `trainers` trainers with the usual credit, and what helps.

    `verdicts` are the bottlenecks of their epochs, as the daemon and the trainers account for them.
    """
    allowed = trainers * REMOTE_CREDIT * batch_bytes / (_CREDIT_TRIPS * round_trip_s)
    daemon = [each for each in verdicts if each in {"disk", "decode"}]
    figures = f"{bytes_per_s / 1e6:,.1f} MB/s, {round_trip_s * 1e3:,.1f} ms for a round trip"
    bound: LinkBound = "link"
    words = (
        f"the link is the limit: {REMOTE_CREDIT} batches would allow {allowed / 1e6:,.1f} MB/s; if the link should "
        "give more, look at BBR, net.ipv4.tcp_wmem and net.ipv4.tcp_rmem (docs/operations.md)"
    )
    if verdicts and len(daemon) > len(verdicts) / 2:
        bound, words = "daemon", f"the daemon is the limit ({max(daemon, key=daemon.count)}), and the link is not"
    elif bytes_per_s >= _NEAR_BOUND * allowed and REMOTE_CREDIT < MAX_CREDIT:
        bound = "credit"
        words = (
            f"the credit is the limit: {REMOTE_CREDIT} batches allow {allowed / 1e6:,.1f} MB/s at this distance; "
            f"subscribe with prefetch={min(MAX_CREDIT, 2 * REMOTE_CREDIT)} or larger batches"
        )
    return LinkReport(bytes_per_s, round_trip_s, bound, f"{figures}; {words}")


def measure_round_trip_s(endpoint: str) -> float:
    """Returns the median time in which a connection to a tcp:// endpoint opens, one round trip. Raises ConnectError."""
    times = []
    for _ in range(_LOOKS):
        began_s = time.monotonic()
        try:
            socket.create_connection(split_host_port(endpoint), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ConnectError(endpoint, str(error.strerror or error)) from error
        times.append(time.monotonic() - began_s)
    return median(times)


# --- the measurement

_drain_decoder: Final = msgspec.json.Decoder(DrainResult)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The accounts of all trainers: rates and waits by trainer, all receipts, and a digest for each epoch.

    verdicts: where the time of each epoch went, one list for each trainer.
    link: what the link to a daemon on another host gives, and what bounds it; None for one on this host.
    headroom_samples_per_s: the rate of each trainer if data cost nothing; None if not requested.
    headroom_fraction: the part of that rate that a trainer loses to the cost of data; None if not requested.
    """

    stream: str
    samples_per_s: list[float]
    wait_fraction: list[float]
    decodes_per_batch: float
    receipts: list[Receipt]
    digest: list[str] | None
    headroom_samples_per_s: list[float] | None = None
    headroom_fraction: list[float] | None = None
    verdicts: list[list[EpochTiming]] = field(default_factory=list)
    link: LinkReport | None = None

    @property
    def ok(self) -> bool:
        return all(receipt.ok for receipt in self.receipts)

    def format_lines(self) -> list[str]:
        """Formats the result as lines of text."""
        total = sum(self.samples_per_s)
        missed, repeated = sum(each.missed for each in self.receipts), sum(each.repeated for each in self.receipts)
        lines = [
            f"stream {self.stream}, {format_count(len(self.wait_fraction), 'trainer')}: {total:,.0f} samples/s in all",
            f"  samples/s each   {_join_figures(self.samples_per_s)} (median {median(self.samples_per_s):,.0f})",
            f"  time waiting     {_join_figures(self.wait_fraction, '.0%')}",
            f"  decodes/batch    {self.decodes_per_batch:.2f}",
            f"  receipts         {'all ok' if self.ok else 'NOT OK'}: missed {missed}, repeated {repeated}",
        ]
        if self.headroom_samples_per_s is not None and self.headroom_fraction is not None:
            lines.append(f"  with data free   {_join_figures(self.headroom_samples_per_s)}")
            lines.append(f"  so data cost     {_join_figures(self.headroom_fraction, '.0%')}")
        lines += [f"  {line}" for line in format_timing_lines(self.verdicts)]
        if self.link is not None:
            lines.append(f"  link             {self.link.text}")
        return lines + [f"  digest           {each}" for each in self.digest or []]


def _join_figures(values: Sequence[float], form: str = ",.0f") -> str:
    return ", ".join(format(value, form) for value in values)


def probe_stream(request: TrainerRequest, trainers: int, write_line: Callable[[str], None]) -> ProbeResult:
    """Drains a stream in `trainers` processes at a time. Raises StreamdError when one of them fails."""
    with connect(request.endpoint) as client:
        spec = client.spec(request.stream)  # an unknown name is refused here once, and not in every process
        before = client.stats()
        processes = format_count(trainers, "process", "processes")
        write_line(f"draining {format_count(request.epochs, 'epoch')} of stream {request.stream!r} in {processes}")
        requests = [replace(request, name=f"probe {number}") for number in range(1, trainers + 1)]
        with ExitStack() as stack:
            started: list[subprocess.Popen[bytes]] = []
            for each in requests:
                told, pipe = msgspec.json.encode(each).decode(), subprocess.PIPE
                process = stack.enter_context(start_child_of_thread("streamd.cli.probe", told, stdin=pipe, stdout=pipe))
                stack.callback(process.kill)  # does nothing if it has ended
                started.append(process)
            # All begin to drain the stream together, and then to replay. The last numbers are those of the moment when
            # all have drained the stream, and replay none of its batches yet.
            after = before
            for phase in ("drain", "replay"):
                # Each trainer prints its line, or has ended.
                for process in started:
                    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
                    process.stdout.readline()
                if phase == "replay":  # only then: a daemon with much to answer may give the same answer twice
                    after = client.stats()
                for process in started:
                    assert process.stdin is not None  # noqa: S101 - as above
                    with suppress(BrokenPipeError):  # it has failed, and its status will tell
                        process.stdin.write(b"\n")
            outputs = [process.communicate()[0] for process in started]
        failed = [process.returncode for process in started if process.returncode]
        if failed:
            kind = RefusedError if set(failed) == {RefusedError.exit_status} else StreamdError
            raise kind("a probing process failed; its message is above")
    drained = [_drain_decoder.decode(output) for output in outputs]
    # The decoded batches that were sent to a trainer, without those decoded ahead and dropped.
    sent_before, sent = (stats.get(f"stream.{request.stream}", {}).get("first_sent", 0.0) for stats in (before, after))
    batches = max(sum(receipt.steps for receipt in each.receipts) for each in drained)
    free = [each.free_samples_per_s for each in drained if each.free_samples_per_s is not None]
    link = None
    if is_remote(request.endpoint):
        slot_bytes = compute_slot_bytes(spec)
        rate = sum(each.samples_per_s for each in drained) * slot_bytes / spec.batch_size
        verdicts = [timing.verdict for each in drained for timing in each.timings]
        link = describe_link(rate, measure_round_trip_s(request.endpoint), trainers, slot_bytes, verdicts)
    return ProbeResult(
        request.stream,
        [each.samples_per_s for each in drained],
        [each.wait_s / each.seconds if each.seconds else 0.0 for each in drained],
        (sent - sent_before) / batches if batches else 0.0,
        [receipt for each in drained for receipt in each.receipts],
        _require_equal_digests([each.digest for each in drained]) if request.digest else None,
        free or None,
        [max(0.0, 1 - each.samples_per_s / most) for each, most in zip(drained, free, strict=False)] or None,
        [each.timings for each in drained],
        link,
    )


def _require_equal_digests(digests: list[list[str]]) -> list[str]:
    if any(each != digests[0] for each in digests):
        raise ReceiptError(f"the trainers saw different data: digests {digests}")
    return digests[0]


if __name__ == "__main__":
    main()
