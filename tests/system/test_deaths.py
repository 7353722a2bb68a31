"""Whatever is killed, nothing is lost and nothing comes twice; many deaths in one epoch are in tests/faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.running_trainers import Trainer, TrainerProcess, trainers

import streamd
from streamd.limits import DRAIN_S

Start = Callable[..., DaemonProcess]
BATCHES = 160


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = write_images(tmp_path_factory.mktemp("d") / "data", {"cat": 160, "dog": 160})
    return {"streams": {"train": stream_config(folder, batch_size=2)}}


@pytest.fixture
def daemon(start_daemon: Start, config: dict[str, object]) -> DaemonProcess:
    return start_daemon(config)


@pytest.fixture(scope="module")
def lasting(config: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One that the death of others leaves as it is."""
    process = DaemonProcess(tmp_path_factory.mktemp("d"), config).start()
    yield process
    process.kill()


def number(daemon: DaemonProcess, group: str, name: str) -> float:
    with streamd.connect(daemon.endpoint) as client:
        return client.stats().get(group, {}).get(name, 0.0)


def ok(trainer: Trainer, epochs: int = 1) -> bool:
    """Whether a trainer ends with every batch once, in order, and receipts that say so."""
    receipts = trainer.finish()
    counts = [(each.missed, each.repeated, each.complete, each.ok) for each in receipts]
    keys = [(epoch, index) for epoch in range(epochs) for index in range(BATCHES)]
    return trainer.keys == keys and counts == [(0, 0, True, True)] * epochs


@pytest.mark.fault("8", "a trainer killed with -9 while it holds four batches, another reading")
def test_a_killed_trainer_gives_everything_back_within_a_second(lasting: DaemonProcess) -> None:
    with (
        TrainerProcess(lasting.endpoint, hold=4, epochs=2) as doomed,
        trainers(Trainer(lasting.endpoint, epochs=2, allowed=50)) as (survivor,),
    ):
        assert number(lasting, "daemon", "sessions") == 2
        doomed.process.kill()
        wait_until(lambda: number(lasting, "daemon", "sessions") == 1, "its session has ended", limit_s=1)
        assert ok(survivor, epochs=2)


@pytest.mark.fault("43", "SIGTERM under load: three trainers go to the next daemon", departs="no systemd")
def test_a_daemon_that_is_asked_to_end_sends_its_trainers_to_the_next_one(daemon: DaemonProcess) -> None:
    several = [Trainer(daemon.endpoint, epochs=4) for _ in range(3)]
    with trainers(*several):
        wait_until(lambda: all(len(each.keys) >= 20 for each in several), "all are reading")
        began_s = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began_s < DRAIN_S - 1
        assert "daemon.drain_timeout" not in daemon.log.read_text()
        assert any(len(each.keys) < 4 * BATCHES for each in several)
        assert all(each.stream._handoff.away_since_s for each in several)
        before = [len(each.keys) for each in several]
        daemon.start()
        wait_until(lambda: all(len(each.keys) > n for each, n in zip(several, before, strict=True)), "all go on", 3)
        assert all(ok(each, epochs=4) for each in several)


@pytest.mark.long
@pytest.mark.fault("43", "SIGTERM twice, while a trainer is stopped", departs="no systemd")
def test_a_second_signal_ends_the_daemon_though_a_trainer_does_not_leave(daemon: DaemonProcess) -> None:
    with TrainerProcess(daemon.endpoint, hold=2) as stopped:
        stopped.process.send_signal(signal.SIGSTOP)
        daemon.process.terminate()
        wait_until(lambda: b"daemon.draining" in daemon.log.read_bytes(), "it drains")
        began_s = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began_s < DRAIN_S - 1


@pytest.mark.fault("26", "a worker killed with -9, twice in an epoch")
def test_a_killed_worker_costs_nothing_but_time(lasting: DaemonProcess) -> None:
    with streamd.connect(lasting.endpoint) as client:
        with client.subscribe("train", epochs=1) as stream:
            expected = [batch.images.tobytes() for batch in stream]
        with client.subscribe("train", epochs=1) as stream:
            seen = []
            for batch in stream:
                seen.append(batch.images.tobytes())
                if batch.index in {20, 60}:
                    os.kill(lasting.workers()[0], signal.SIGKILL)
        assert seen == expected
        assert stream.receipts[0].ok
        assert stream.reconnects == 0
        wait_until(lambda: number(lasting, "engine", "worker_deaths") == 2, "both deaths are counted")


@pytest.mark.fault("4", "the daemon killed with -9 and away for a while")
def test_a_daemon_that_is_away_for_a_while_is_waited_for(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.client.session.ANSWER_TIMEOUT_S", 0.05)
    with trainers(Trainer(daemon.endpoint, epochs=1, allowed=30)) as (waiting,):
        wait_until(lambda: len(waiting.keys) == 30 and waiting.undelivered > 0, "it has read 30 and more lie ready")
        daemon.process.kill()
        daemon.process.wait()
        wait_until(lambda: waiting.stream._session._backoff_s >= 0.4, "it has asked often, ever more slowly")
        monkeypatch.undo()
        assert waiting.stream._handoff.away_since_s is not None
        daemon.start()
        assert ok(waiting)
        assert waiting.stream.reconnects == 1
