"""What it costs to be watched: processor time of a daemon at full rate, with scrapes and without.

    python benchmarks/monitoring.py [--trainers 8] [--seconds 20] [--json]

Seconds with twenty scrapes, evenly spread, take turns with seconds without, while trainers drain a stream of small
images as fast as they come. One scrape costs a twentieth of the difference; by itself it would drown in the noise.
Processor time is that of the daemon's own process, from the kernel's scheduler; its workers' is told beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image
from processes import children, cpu_s

import streamd

_IMAGES: Final = 2000
_PERIOD_S: Final = 1.0
_SCRAPES: Final = 20  # a period
_START_S: Final = 60.0
_NS: Final = 1e9


@dataclass(frozen=True)
class Cost:
    """Medians: `quiet` is the daemon's processor time a second, `scrape_cpu_s` what one scrape adds; its answer comes
    after `scrape_s`.
    """

    trainers: int
    samples_per_s: float
    quiet: float
    scrape_cpu_s: float
    workers: float
    scrape_s: float
    scrape_longest_s: float
    scrape_bytes: int

    @property
    def share(self) -> float:
        """What a scrape each second adds to the daemon's processor time."""
        return self.scrape_cpu_s / self.quiet

    @property
    def share_of_all(self) -> float:
        """The same, with its workers' time counted in."""
        return self.scrape_cpu_s / (self.quiet + self.workers)


def _own_cpu_s(pid: int) -> float:
    """Of all threads of a process, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / _NS


def _write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(_IMAGES):
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((128, 128))
        picture.save(folder / f"{number:05}.jpg", quality=85)


@contextmanager
def _daemon(place: Path) -> Iterator[tuple[int, str, str]]:
    """A daemon that is watched: pid, endpoint, address."""
    _write(place / "data" / "all")
    endpoint = f"ipc://{place}/s"
    stream = {"source": {"kind": "folder", "path": str(place / "data")}, "image": {"size": [128, 128]}}
    config = {"listen": endpoint, "monitor": "127.0.0.1:0", "streams": {"train": stream}}
    (place / "config.yaml").write_text(json.dumps(config))
    log = place / "log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(place / "config.yaml")]
        process = subprocess.Popen(command, stderr=file, env={"STATE_DIRECTORY": str(place / "state")})
    try:
        deadline_s = time.monotonic() + _START_S
        while b"daemon.ready" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"monitoring: the daemon does not serve:\n{log.read_text()}")
            time.sleep(0.1)
        found = re.search(r"metrics at http://(\S+)/metrics", log.read_text())
        assert found is not None  # noqa: S101 - it says so before it serves
        yield process.pid, endpoint, found[1]
    finally:
        process.terminate()
        process.wait()


def _scrape(connection: HTTPConnection) -> tuple[float, int]:
    """Seconds until the answer is here, and its bytes; on a connection that is kept, as Prometheus does."""
    began_s = time.perf_counter()
    connection.request("GET", "/metrics")
    size = len(connection.getresponse().read())
    return time.perf_counter() - began_s, size


def _second(pid: int, ask: Callable[[], tuple[float, int]]) -> tuple[float, list[tuple[float, int]]]:
    """One period in which it is asked so often: processor seconds a second, and the answers."""
    before, began_s, answers = _own_cpu_s(pid), time.perf_counter(), []
    for number in range(1, _SCRAPES + 1):
        answers.append(ask())
        time.sleep(max(0.0, began_s + number * _PERIOD_S / _SCRAPES - time.perf_counter()))
    return (_own_cpu_s(pid) - before) / (time.perf_counter() - began_s), answers


def _measure(pid: int, endpoint: str, address: str, seconds: int, trainers: int) -> Cost:
    workers, connection = children(pid), HTTPConnection(address)
    with streamd.connect(endpoint) as client:
        before = client.stats()["stream.train"]["sent_samples"]
        workers_s, began_s = cpu_s(workers), time.monotonic()
        turns = [
            (_second(pid, lambda: (0.0, 0))[0], *_second(pid, partial(_scrape, connection)))
            for _ in range(max(1, seconds // 2))
        ]
        lasted_s = time.monotonic() - began_s
        rate = (client.stats()["stream.train"]["sent_samples"] - before) / lasted_s
    connection.close()
    times = [took_s for _, _, answers in turns for took_s, _ in answers]
    return Cost(
        trainers,
        rate,
        statistics.median(quiet for quiet, _, _ in turns),
        statistics.median(watched - quiet for quiet, watched, _ in turns) * _PERIOD_S / _SCRAPES,
        (cpu_s(workers) - workers_s) / lasted_s,
        statistics.median(times),
        max(times),
        turns[-1][2][-1][1],
    )


def measure(seconds: int, trainers: int) -> Cost:
    """The cost of a daemon of its own, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sd") as place, _daemon(Path(place)) as (pid, endpoint, address):
        command = [sys.executable, "-m", "streamd.cli.main", "probe", "train", "--endpoint", endpoint]
        command += ["--trainers", str(trainers), "--epochs", "1000000"]
        probe = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with streamd.connect(endpoint) as client:
                while sum(each.epoch > 0 for each in client.status().sessions) < trainers:
                    time.sleep(0.1)
            return _measure(pid, endpoint, address, seconds, trainers)
        finally:
            probe.terminate()
            probe.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs a daemon to be scraped each second.")
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cost = measure(options.seconds, options.trainers)
    if options.json:
        print(json.dumps({**asdict(cost), "share": cost.share, "share_of_all": cost.share_of_all}))
        return
    print(
        f"{cost.samples_per_s:,.0f} samples/s to {cost.trainers} trainers; the daemon takes {cost.quiet:.3f} of a core,"
        f" its workers {cost.workers:.2f}\n"
        f"a scrape: {cost.scrape_bytes:,} bytes after {1000 * cost.scrape_s:.1f} ms, at most "
        f"{1000 * cost.scrape_longest_s:.1f} ms; {1000 * cost.scrape_cpu_s:.2f} ms of the daemon's processor time; one "
        f"each second adds {cost.share:.1%}, or {cost.share_of_all:.2%} of what it takes with its workers"
    )


if __name__ == "__main__":
    main()
