"""Samples that crash a worker make only their own row bad; a worker killed from outside makes none bad."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support import crashing_decoders
from support.checked_epochs import Epoch, number, verdicts
from support.crashing_decoders import Broken, mark
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.running_trainers import Trainer, trainers
from support.short_stream import FULL

from streamd.client import Batch

DEADLINE_S = 8.0  # less, and a busy host makes a sound row look hung, or a starting worker (twice this) stuck
KILLS = 50 if FULL else 6  # of workers, from outside
CULPRIT = "cat/0003.jpg"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 20, "dog": 20})


@pytest.fixture
def ills(tmp_path: Path) -> Broken:
    return Broken(tmp_path / "ills", DEADLINE_S)


@pytest.fixture
def serve(start_daemon: Start, folder: Path, ills: Broken) -> Start:
    """A daemon over the folder; `changes` are the stream's, `others` are streams beside it."""

    def start(others: dict[str, object] | None = None, workers: int = 1, **changes: Any) -> DaemonProcess:
        streams = {"train": stream_config(folder, **changes), **(others or {})}
        return start_daemon({"workers": workers, "streams": streams}, environment=ills.environment, apart=False)

    return start


# --- samples that end a worker


HARMS = {
    "SEGV": (crashing_decoders.SEGV, "crashes its decoder: SIGSEGV"),
    "ABRT": (crashing_decoders.ABRT, "crashes its decoder: SIGABRT"),
    "FPE": (crashing_decoders.FPE, "crashes its decoder: SIGFPE"),
    "memory": (crashing_decoders.EAT, "needs more memory to decode than a worker has, 3 GiB"),
    "hang": (crashing_decoders.HANG, f"takes more than {DEADLINE_S:g} s to decode"),
}


@pytest.mark.long
@pytest.mark.fault("26", "a sample that crashes its decoder, eats its memory, or takes for ever")
@pytest.mark.timeout(240)  # each sample costs two workers, and the next ones have to start
def test_a_sample_that_kills_two_workers_is_bad_and_no_other_row_is_lost(
    start_daemon: Start, tmp_path: Path, ills: Broken
) -> None:
    for name, (what, _) in HARMS.items():
        mark(write_images(tmp_path / name, {"cat": 20, "dog": 20}) / CULPRIT, what)
    streams = {name: stream_config(tmp_path / name) for name in HARMS}
    daemon = start_daemon({"workers": 2, "streams": streams}, environment=ills.environment, apart=False)
    firsts: dict[str, Epoch] = {}
    for deaths, (name, (_, reason)) in enumerate(HARMS.items(), 1):
        first = firsts[name] = Epoch(daemon, tmp_path / name, name)
        assert first.bad == [(CULPRIT, reason, "substituted")]
        assert first.receipt.bad == 1
        assert sorted(set(first.ids)) == [each for each in range(40) if each != 3]
        assert number(daemon, "engine", "worker_deaths") == 2 * deaths
        assert sum(reason in verdict for verdict in verdicts(daemon)) == 1
    assert len(verdicts(daemon)) == len(HARMS)
    daemon.restart_after_kill()
    for name, first in firsts.items():
        again = Epoch(daemon, tmp_path / name, name)
        assert (again.bad, again.ids, again.pixels) == (first.bad, first.ids, first.pixels)
    assert number(daemon, "engine", "worker_deaths") == 0


@pytest.mark.long
@pytest.mark.fault("26", "several samples that crash their decoder, in one batch")
def test_each_of_several_crashing_samples_in_one_batch_is_found(serve: Start, folder: Path) -> None:
    culprits = ["cat/0001.jpg", "cat/0002.jpg", "cat/0007.jpg"]
    for name in culprits:
        mark(folder / name, crashing_decoders.SEGV)
    daemon = serve(workers=2, shuffle="none", bad_samples={"policy": "mask"})
    epoch = Epoch(daemon, folder)
    assert epoch.bad == [(name, "crashes its decoder: SIGSEGV", "masked") for name in culprits]
    assert epoch.weights[:8] == [1, 0, 0, 1, 1, 1, 1, 0]


# --- what comes from outside


@pytest.mark.long
@pytest.mark.fault("26", "workers killed from outside, fifty times in an epoch")
@pytest.mark.timeout(240)  # each kill waits for a worker to start
def test_workers_killed_from_outside_lose_no_row_and_mark_no_sample_bad(
    start_daemon: Start, tmp_path: Path, ills: Broken
) -> None:
    folder = write_images(tmp_path / "many", {"cat": 240}, size=(16, 16))
    config = {"workers": 2, "streams": {"train": stream_config(folder, batch_size=4)}}
    daemon = start_daemon(config, environment=ills.environment, apart=False)
    killed: list[int] = []

    def kill(batch: Batch) -> None:
        if batch.index < KILLS:
            wait_until(lambda: set(daemon.workers()) - set(killed), "a worker lives")
            victim = (set(daemon.workers()) - set(killed)).pop()
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    epoch = Epoch(daemon, folder, between=kill)
    assert len(killed) == KILLS
    assert sorted(epoch.ids) == list(range(240))
    assert (epoch.bad, verdicts(daemon)) == ([], [])
    wait_until(lambda: number(daemon, "engine", "worker_deaths") == KILLS, "all deaths are counted")


@pytest.mark.long
@pytest.mark.fault("26", "a worker stopped for ever")
def test_a_worker_that_is_stopped_for_ever_is_replaced(serve: Start, folder: Path) -> None:
    daemon = serve(workers=2)
    (victim, _) = daemon.workers()
    os.kill(victim, signal.SIGSTOP)
    epoch = Epoch(daemon, folder)
    assert sorted(epoch.ids) == list(range(40))
    assert (epoch.bad, verdicts(daemon)) == ([], [])
    wait_until(lambda: "a worker died, killed because it was stopped" in daemon.log.read_text(), "it is logged")
    assert victim not in daemon.workers()


# --- verdicts and restarts


@pytest.mark.long
@pytest.mark.fault("26", "the daemon killed between a verdict and its first use")
def test_a_daemon_killed_after_it_recorded_a_bad_sample_serves_the_same_batches_again(
    serve: Start, folder: Path, ills: Broken
) -> None:
    (folder / CULPRIT).write_bytes(b"\xff\xd8\xff no picture")
    ills.die_of_the_next_verdict()
    daemon = serve()
    with trainers(Trainer(daemon.endpoint, epochs=1)) as (trainer,):
        wait_until(lambda: daemon.process.poll() == -signal.SIGKILL, "the verdict has killed it")
        (verdict,) = verdicts(daemon)
        assert '"sample_id":3' in verdict
        daemon.start()
        assert [(each.ok, each.bad) for each in trainer.finish()] == [(True, 1)]
    assert verdicts(daemon) == [verdict]
    assert Epoch(daemon, folder).ids == trainer.rows
