"""What it costs to be watched: processor time of a daemon at full rate, with somebody who looks and without.

    python benchmarks/monitoring.py [--trainers 8] [--seconds 80] [--results FILE]

Seconds in which it is scraped twenty times, evenly spread, take turns with seconds in which twenty dashboards are open,
in which the pictures for so many are asked for, and in which nobody looks, while trainers drain a stream of small
images as fast as they come. One scrape costs a twentieth of the difference; alone it would drown in the noise.
Processor time is that of the daemon's own process, from the kernel's scheduler; its workers' is told beside it. The
page is results/monitoring.md.
"""

from __future__ import annotations

import argparse
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Final

import numpy as np
import run
from PIL import Image
from processes import children, cpu_ns, cpu_s
from report import RESULTS, Bound, Machine, Report, Section, Table, finish

import streamd

_IMAGES: Final = 2000
_TIMES: Final = 20  # a second
_EPOCHS: Final = 1_000_000  # more than are read meanwhile
_NS: Final = 1e9
_MOST: Final = 1.0  # percent of the processor time of a daemon with its workers
_SHOWN_EVERY_S: Final = 2.0  # a page waits so long between two batches


@dataclass(frozen=True, slots=True)
class Look:
    """Medians: processor time that it adds to a second of the daemon, time until an answer was there, and its size."""

    cpu_s: float
    answer_s: float
    answer_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """`quiet` is the daemon's own processor time a second while nobody looks, `workers` that of its workers.

    `scrape` is one a second; _TIMES dashboards are open, which take `live_cpu_s` a second together, and each of them
    gets `pictures` of a batch every _SHOWN_EVERY_S.
    """

    trainers: int
    samples_per_s: float
    quiet: float
    workers: float
    scrape: Look
    live_cpu_s: float
    pictures: Look

    @property
    def watched_cpu_s(self) -> float:
        """A second of all of it."""
        return self.scrape.cpu_s + self.live_cpu_s + self.pictures.cpu_s

    def compute_percent(self, cpu_s: float) -> float:
        """Processor time a second, of what the daemon takes with its workers."""
        return 100 * cpu_s / (self.quiet + self.workers)

    def build_row(self, name: str, cpu_s: float, look: Look | None = None) -> tuple[str, ...]:
        """A line of the table."""
        answer = ("", "") if look is None else (f"{look.answer_bytes:,}", f"{1000 * look.answer_s:.1f}")
        shares = (f"{cpu_s / self.quiet:.2%}", f"**{self.compute_percent(cpu_s):.2f}%**")
        return (name, *answer, f"{1000 * cpu_s:.2f}", *shares)


def build_report(machine: Machine, cost: Cost) -> Report:
    """A line for each who watches, and one for all of them."""
    rows = (
        cost.build_row("a scrape each second", cost.scrape.cpu_s, cost.scrape),
        cost.build_row(f"{_TIMES} dashboards", cost.live_cpu_s),
        cost.build_row(f"their pictures, each {_SHOWN_EVERY_S:g} s", cost.pictures.cpu_s, cost.pictures),
        cost.build_row("all of them", cost.watched_cpu_s),
    )
    of_all = ("of the daemon's own", "with its workers")
    heads = ("watched by", "bytes", "answered, ms", "ms of processor a second", *of_all)
    text = (
        f"{cost.trainers} trainers get {cost.samples_per_s:,.0f} samples a second, as fast as they come. For that the "
        f"daemon's own process takes {cost.quiet:.3f} of a core, its workers {cost.workers:.2f}. While nobody looks, "
        "nothing is done. What drowns in the noise of the machine may show as less than nothing."
    )
    bound = Bound("Percent that all of them take", cost.compute_percent(cost.watched_cpu_s), "at most", _MOST)
    section = Section(text, Table(heads, rows), bounds=(bound,))
    command = "python benchmarks/monitoring.py"
    return Report("What it costs to be watched", command, machine, "Its docstring says how. Medians.", (section,))


def write_pictures(folder: Path) -> None:
    """Writes small JPEGs of noise."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(_IMAGES):
        picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((128, 128))
        picture.save(folder / f"{number:05}.jpg", quality=85)


@contextmanager
def _daemon(home: Path) -> Iterator[tuple[run.Daemon, str]]:
    """A daemon that is watched, and host and port of its monitor."""
    write_pictures(home / "data" / "all")
    stream = {"source": {"kind": "folder", "path": str(home / "data")}, "image": {"size": [128, 128]}}
    with run.Daemon(home, {"monitor": "127.0.0.1:0", "streams": {"train": stream}}) as daemon:
        daemon.wait_ready()
        found = re.search(r"metrics at http://(\S+)/metrics", daemon.read_log())
        assert found is not None  # noqa: S101 - it says so before it serves
        yield daemon, found[1]


Answer = tuple[float, int]  # seconds until it was here, its bytes
Ask = Callable[[], Answer]
Second = tuple[float, list[Answer]]  # processor seconds a second, and the answers in it


def _ask(connection: HTTPConnection, path: str, headers: dict[str, str]) -> Answer:
    """Seconds until the answer is here, and its bytes; on a connection that is kept, as Prometheus does."""
    began_s = time.perf_counter()
    connection.request("GET", path, headers=headers)
    size = len(connection.getresponse().read())
    return time.perf_counter() - began_s, size


def _second(pid: int, ask: Ask) -> Second:
    """One second in which it is asked _TIMES."""
    before_ns, began_s, answers = cpu_ns([pid]), time.perf_counter(), []
    for number in range(1, _TIMES + 1):
        answers.append(ask())
        time.sleep(max(0.0, began_s + number / _TIMES - time.perf_counter()))
    return (cpu_ns([pid]) - before_ns) / _NS / (time.perf_counter() - began_s), answers


def _nothing() -> Answer:
    return 0.0, 0


@contextmanager
def _dashboards(address: str) -> Iterator[Ask]:
    """Twenty that are open; to ask reads what has come for one of them."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        pages = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(_TIMES)]
        for page in pages:
            page.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        turn = cycle(pages)
        yield lambda: (0.0, len(next(turn).recv(1 << 20)))


def _measure(pid: int, endpoint: str, address: str, seconds: int, trainers: int) -> Cost:
    workers, connection = children(pid), HTTPConnection(address)
    rounds = max(1, seconds // 4)
    taken: dict[str, list[Second]] = {"quiet": [], "scrape": [], "pictures": [], "live": []}
    with streamd.connect(endpoint) as client:
        key = {"Authorization": f"Bearer {client.dashboard().partition('#')[2]}"}
        asks: dict[str, Ask] = {
            "quiet": _nothing,
            "scrape": partial(_ask, connection, "/metrics", {}),
            "pictures": _sometimes(partial(_ask, connection, "/pictures/train", key)),
        }
        before = client.stats()["stream.train"]["sent_samples"]
        workers_s, began_s = cpu_s(workers), time.monotonic()
        for _ in range(rounds):
            for name, ask in asks.items():
                taken[name].append(_second(pid, ask))
            with _dashboards(address) as look:
                taken["live"].append(_second(pid, look))
        lasted_s = time.monotonic() - began_s
        rate = (client.stats()["stream.train"]["sent_samples"] - before) / lasted_s
    connection.close()
    quiet = [cpu for cpu, _ in taken.pop("quiet")]
    added_s = {  # more than the quiet second before it
        name: statistics.median(watched - alone for alone, (watched, _) in zip(quiet, some, strict=True))
        for name, some in taken.items()
    }
    scrape = _look(added_s["scrape"] / _TIMES, taken["scrape"])
    pictures = _look(added_s["pictures"], taken["pictures"])
    busy = (cpu_s(workers) - workers_s) / lasted_s
    return Cost(trainers, rate, statistics.median(quiet), busy, scrape, added_s["live"], pictures)


def _sometimes(ask: Ask) -> Ask:
    """As often as so many pages ask, that have pictures: each waits between two batches."""
    turn = cycle(range(round(_SHOWN_EVERY_S)))
    return lambda: ask() if next(turn) == 0 else _nothing()


def _look(cpu_s: float, some: list[Second]) -> Look:
    answers = [answer for _, several in some for answer in several if answer[1]]
    times_s, sizes = zip(*answers, strict=True)
    return Look(cpu_s, statistics.median(times_s), statistics.median_low(sizes))


def measure(seconds: int, trainers: int) -> Cost:
    """The cost of a daemon of its own, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sd") as place, _daemon(Path(place)) as (daemon, address):
        command = daemon.probe(trainers=trainers, epochs=_EPOCHS)
        probe = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with streamd.connect(daemon.endpoint) as client:
                while sum(each.epoch > 0 for each in client.status().sessions) < trainers:
                    time.sleep(0.1)
            return _measure(daemon.pid, daemon.endpoint, address, seconds, trainers)
        finally:
            probe.terminate()
            probe.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs a daemon to be watched.")
    parser.add_argument("--trainers", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=80)
    parser.add_argument("--results", type=Path, default=RESULTS / "monitoring.json")
    options = parser.parse_args()
    finish(build_report(run.machine(), measure(options.seconds, options.trainers)), options.results)


if __name__ == "__main__":
    main()
