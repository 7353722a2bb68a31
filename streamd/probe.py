"""Draining a stream: what `streamd probe` measures, one process a trainer.

`python -m streamd.probe STREAM ENDPOINT EPOCHS DIGEST` is one trainer. It prints a line when it has subscribed, waits
for one, so that all begin together and nobody's start-up is measured, and prints one JSON object at the end.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import msgspec

from streamd.client import Batch, connect
from streamd.endpoint import find
from streamd.errors import ReceiptError, RefusedError, StreamdError
from streamd.limits import PAGE_BYTES
from streamd.printable import counted
from streamd.receipts import Receipt


@dataclass(frozen=True, slots=True)
class Drained:
    """One trainer's account: samples and seconds from its first batch to its last, and how much of that was waiting."""

    samples: int
    seconds: float
    wait_s: float
    receipts: list[Receipt]
    digest: list[str]


@dataclass(frozen=True, slots=True)
class Probe:
    """All trainers' accounts: rates and waits by trainer, every receipt, a digest an epoch."""

    stream: str
    samples_per_s: list[float]
    wait_fraction: list[float]
    decodes_per_batch: float
    receipts: list[Receipt]
    digest: list[str] | None

    @property
    def ok(self) -> bool:
        return all(receipt.ok for receipt in self.receipts)

    def lines(self) -> list[str]:
        """For people."""
        total = sum(self.samples_per_s)
        rates = ", ".join(f"{rate:,.0f}" for rate in self.samples_per_s)
        waits = ", ".join(f"{fraction:.0%}" for fraction in self.wait_fraction)
        missed, repeated = sum(each.missed for each in self.receipts), sum(each.repeated for each in self.receipts)
        lines = [
            f"stream {self.stream}, {counted(len(self.wait_fraction), 'trainer')}: {total:,.0f} samples/s in all",
            f"  samples/s each   {rates} (median {median(self.samples_per_s):,.0f})",
            f"  time waiting     {waits}",
            f"  decodes/batch    {self.decodes_per_batch:.2f}",
            f"  receipts         {'all ok' if self.ok else 'NOT OK'}: missed {missed}, repeated {repeated}",
        ]
        return lines + [f"  digest           {each}" for each in self.digest or []]


def drain(
    stream: str, endpoint: str, epochs: int, *, digest: bool, ready: Callable[[], None] = lambda: None
) -> Drained:
    """Drains `epochs` epochs in this process, touching one byte of every page. `ready` is called before the first."""
    digests: list[str] = []
    samples, first_s, last_s, wait_before_s = 0, 0.0, 0.0, 0.0
    with connect(endpoint) as client, client.subscribe(stream, epochs=epochs) as batches:
        ready()
        for epoch in batches.epochs():
            summing = hashlib.blake2b(digest_size=16) if digest else None
            for batch in epoch:
                batch.images.reshape(-1)[::PAGE_BYTES].sum()
                last_s = time.monotonic()
                if first_s:
                    samples += len(batch)
                else:
                    first_s, wait_before_s = last_s, batches.wait_s
                if summing is not None:
                    _digest(summing, batch)
            if summing is not None:
                digests.append(summing.hexdigest())
        return Drained(samples, last_s - first_s, batches.wait_s - wait_before_s, batches.receipts, digests)


def _digest(summing: hashlib.blake2b, batch: Batch) -> None:
    summing.update(batch.index.to_bytes(8, "little") + batch.sample_ids.tobytes() + batch.weights.tobytes())
    for name in sorted(batch.labels):
        summing.update(name.encode() + batch.labels[name].tobytes())
    summing.update(batch.images.data)


def drain_all(
    stream: str, endpoint: str | None, *, epochs: int, trainers: int, digest: bool, say: Callable[[str], None]
) -> Probe:
    """Drains a stream in `trainers` processes at a time. Raises StreamdError when one of them fails."""
    where = find(endpoint)
    with connect(where) as client:
        client.spec(stream)  # an unknown name is refused here, once, not by every process
        before = client.stats()
        say(f"draining {counted(epochs, 'epoch')} of {stream} in {counted(trainers, 'process', 'processes')}")
        drained = _run(stream, where, epochs, trainers, digest=digest)
        after = client.stats()
    decoded = _produced(after, stream) - _produced(before, stream)
    batches = max(sum(receipt.steps for receipt in each.receipts) for each in drained)
    return Probe(
        stream,
        [each.samples / each.seconds if each.seconds else 0.0 for each in drained],
        [each.wait_s / each.seconds if each.seconds else 0.0 for each in drained],
        decoded / batches if batches else 0.0,
        [receipt for each in drained for receipt in each.receipts],
        _agreed([each.digest for each in drained]) if digest else None,
    )


def _run(stream: str, endpoint: str, epochs: int, trainers: int, *, digest: bool) -> list[Drained]:
    command = [sys.executable, "-P", "-m", "streamd.probe", stream, endpoint, str(epochs), str(int(digest))]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) for _ in range(trainers)
    ]
    for process in processes:
        if process.stdout is not None:
            process.stdout.readline()
    outputs = _together(process.communicate for process in processes)
    failed = [process.returncode for process in processes if process.returncode]
    if failed:
        kind = RefusedError if set(failed) == {RefusedError.exit_status} else StreamdError
        raise kind("a probing process failed; its message is above")
    return [msgspec.json.decode(output, type=Drained) for output in outputs]


def _together(ends: Iterable[Callable[[bytes], tuple[bytes, bytes]]]) -> list[bytes]:
    """Gives every process its line and collects what it says, each in a thread so that none waits for another."""
    waiting = list(ends)
    with ThreadPoolExecutor(max_workers=len(waiting)) as threads:
        return [said for said, _ in threads.map(lambda end: end(b"\n"), waiting)]


def _produced(stats: dict[str, dict[str, float]], stream: str) -> float:
    return stats.get(f"stream.{stream}", {}).get("produced", 0.0)


def _agreed(digests: list[list[str]]) -> list[str]:
    if any(each != digests[0] for each in digests):
        raise ReceiptError(f"the trainers saw different data: digests {digests}")
    return digests[0]


def _wait_for_the_others() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def main() -> None:
    """One trainer's process."""
    stream, endpoint, epochs, digest = sys.argv[1:]
    try:
        drained = drain(stream, endpoint, int(epochs), digest=digest == "1", ready=_wait_for_the_others)
    except StreamdError as error:
        sys.stderr.write(f"streamd probe: {error}\n")
        raise SystemExit(error.exit_status) from None
    sys.stdout.buffer.write(msgspec.json.encode(drained))


if __name__ == "__main__":
    main()
