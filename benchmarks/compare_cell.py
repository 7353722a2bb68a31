"""One measurement: starts a loader's trainers, lets them begin together, reads what they found."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import compare_peers as peers
import run
from compare_environments import last_line, python_of
from compare_process import CellFailedError, Process, started
from compare_results import Taken, Terms

from streamd.config.load import load_config
from streamd.config.schema import list_unserved_settings
from streamd.errors import ConfigError

HERE: Final = Path(__file__).resolve().parent
VERIFY_S: Final = 300.0
START_S: Final = 60.0  # imports, on top of the times that are measured
PREPARE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how everything is measured."""

    data: Path
    terms: Terms


def command_of(bench: Bench, peer: peers.Peer, of: str, *options: object, workers: int | None = None) -> list[str]:
    """How a peer's file is started. Raises EnvironmentFailedError."""
    python, data = python_of(peer.environment), bench.data / peer.data_of(of)
    place = ["--data", data, "--store", bench.data / f"{peer.name}.{of}", "--workers", workers or bench.terms.cores]
    return [str(word) for word in (python, HERE / "peers" / f"{peer.module}.py", *place, *options)]


def prepare(bench: Bench, peer: peers.Peer, of: str) -> None:
    """Makes what a peer keeps on disk, once."""
    with started([command_of(bench, peer, of, "--role", "prepare")], PREPARE_S) as (process,):
        process.answer()


def free_port() -> int:
    """A port that nobody listens at; a peer may also use the nine after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(int(probe.getsockname()[1]), 65_000)


def _check_served(stream: Mapping[str, Any]) -> None:
    """Raises CellFailedError for what this version of streamd does not serve."""
    try:
        refused = list_unserved_settings(load_config({"streams": {"train": dict(stream)}}))
    except ConfigError as error:
        raise CellFailedError(last_line(str(error))) from error
    if refused:
        raise CellFailedError(refused[0])


@contextmanager
def served(bench: Bench, peer: peers.Peer, of: str, trainers: int, workers: int | None) -> Iterator[str]:
    """The address of what the trainers share: streamd's daemon, a peer's service, or none."""
    if peer.is_streamd:
        stream = peers.stream(peer, of, bench.data)
        _check_served(stream)
        with run.daemon_of(stream, workers or bench.terms.cores) as daemon:
            yield daemon.endpoint
    elif peer.shared:
        address = f"127.0.0.1:{free_port()}"
        options = ("--role", "serve", "--address", address, "--trainers", trainers)
        with started([command_of(bench, peer, of, *options, workers=workers)], VERIFY_S) as (service,):
            service.wait_for("serving")
            yield address
    else:
        yield ""


def verify(bench: Bench, peer: peers.Peer, of: str) -> dict[str, Any]:
    """What the peer says when it has taken one epoch, sample by sample."""
    with served(bench, peer, of, 1, None) as address:
        options = ("--address", address, "--verify", bench.data / peers.COLOURS[of])
        with started([command_of(bench, peer, of, *options)], VERIFY_S) as (process,):
            return process.answer()


def measure(bench: Bench, peer: peers.Peer, cell: peers.Cell) -> Taken:
    """All trainers of a cell, from a common start."""
    terms, count = bench.terms, cell.trainers
    times = ("--warm-s", terms.warm_s, "--settle-s", terms.settle_s, "--seconds", terms.seconds)
    limit_s = START_S + terms.warm_s + terms.settle_s + 2 * terms.seconds + 4.0 * count
    with served(bench, peer, cell.set, count, cell.workers) as address:
        commands = [
            command_of(
                bench,
                peer,
                cell.set,
                *("--address", address, "--trainer", number, "--trainers", count),
                *times,
                workers=cell.workers,
            )
            for number in range(count)
        ]
        with started(commands, limit_s) as processes:
            return _taken(processes)


def _taken(processes: Sequence[Process]) -> Taken:
    for process in processes:
        process.wait_for("ready")
    for process in processes:
        process.tell("go\n")
    answers = [process.answer() for process in processes]
    rates = {use: tuple(each[use]["samples"] / each[use]["seconds"] for each in answers) for use in ("touch", "copy")}
    return Taken(rates["touch"], rates["copy"], tuple(each["first_batch_s"] for each in answers))


def measure_limit(bench: Bench, cell: peers.Cell) -> Taken:
    """Bare decoding, or for decoded data bare copying."""
    if cell.set == "decoded":
        command = [sys.executable, str(HERE / "limit_copy.py"), "--seconds", str(bench.terms.seconds)]
    else:
        options = ["--processes", cell.workers or bench.terms.cores, "--row", peers.LIMIT_ROWS[cell.set]]
        command = [sys.executable, str(HERE / "limit.py"), str(bench.data / cell.set), *map(str, options)]
    with started([command], VERIFY_S) as (process,):
        return Taken((float(process.answer()["samples_per_s"]),))
