"""Several trainers on one daemon: each batch is decoded once, and no trainer holds up another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.checked_epochs import number
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.running_trainers import Trainer, TrainerProcess, trainers

BATCHES = 40
LATE = 16  # batches that a trainer has taken when another comes


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 160, "dog": 160})
    with DaemonProcess(place, {"streams": {"train": stream_config(folder)}}) as process:
        yield process


def produced(daemon: DaemonProcess) -> float:
    return number(daemon, "stream.train", "produced")


def all_keys(epochs: int) -> list[tuple[int, int]]:
    return [(epoch, index) for epoch in range(epochs) for index in range(BATCHES)]


def test_four_trainers_that_start_together_share_each_decode(daemon: DaemonProcess) -> None:
    before = produced(daemon)
    with trainers(*(Trainer(daemon.endpoint, epochs=3) for _ in range(4))) as four:
        for each in four:
            assert [receipt.ok for receipt in each.finish()] == [True] * 3
            assert each.keys == all_keys(3)
    assert BATCHES * 3 <= produced(daemon) - before < BATCHES * 3 * 1.1


def test_a_late_trainer_gets_every_batch_too(daemon: DaemonProcess) -> None:
    with trainers(Trainer(daemon.endpoint, epochs=2, allowed=30)) as (early,):
        with trainers(Trainer(daemon.endpoint, epochs=2)) as (late,):
            assert [receipt.ok for receipt in late.finish()] == [True] * 2
        assert [receipt.ok for receipt in early.finish()] == [True] * 2
        assert early.keys == late.keys == all_keys(2)


@pytest.mark.fault("8", "a trainer killed with -9 while it holds four batches, another reading")
def test_the_session_of_a_killed_trainer_ends_and_the_other_reads_on(daemon: DaemonProcess) -> None:
    def sessions() -> float:
        return number(daemon, "daemon", "sessions")

    with (
        TrainerProcess(daemon.endpoint, hold=4, epochs=2) as doomed,
        trainers(Trainer(daemon.endpoint, epochs=2, allowed=50)) as (survivor,),
    ):
        wait_until(lambda: sessions() == 2, "those of other tests have left")
        doomed.process.kill()
        wait_until(lambda: sessions() == 1, "its session has ended")
        assert [receipt.ok for receipt in survivor.finish()] == [True] * 2
        assert survivor.keys == all_keys(2)


@pytest.mark.long
@pytest.mark.fault("43", "SIGTERM twice, while a trainer is stopped", departs="no systemd")
def test_a_second_sigterm_ends_the_daemon_though_a_trainer_stays(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 40})
    daemon = start_daemon({"streams": {"train": stream_config(folder)}})
    with TrainerProcess(daemon.endpoint, hold=2) as stopped:
        stopped.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED)  # or it might still leave
        daemon.process.terminate()
        wait_until(lambda: b"daemon.draining" in daemon.log.read_bytes(), "it drains")
        assert daemon.terminate() == 0, daemon.log.read_text()
        assert b"daemon.drain_timeout" not in daemon.log.read_bytes()


@pytest.fixture
def slow_daemon(start_daemon: Start, tmp_path: Path) -> Callable[[str], DaemonProcess]:
    """A daemon with one worker, that takes far longer to decode a batch of 1.5 MiB than a trainer to take it."""
    folder = write_images(tmp_path / "data", {"cat": 1}, size=(640, 800))
    for each in range(1, 8 * BATCHES):
        (folder / "cat" / f"{each:04}.jpg").hardlink_to(folder / "cat" / "0000.jpg")
    stream = stream_config(folder, image={"size": [256, 256], "exact": True})

    def start(memory: str) -> DaemonProcess:
        return start_daemon({"memory": memory, "workers": 1, "streams": {"train": stream}})

    return start


@pytest.mark.long
def test_a_late_trainer_catches_up_where_decoding_is_slow_and_then_shares_each_decode(
    slow_daemon: Callable[[str], DaemonProcess],
) -> None:
    daemon = slow_daemon("20MiB")
    with trainers(Trainer(daemon.endpoint, epochs=1)) as (early,):
        wait_until(lambda: len(early.keys) >= LATE, "the first has taken some")
        with trainers(Trainer(daemon.endpoint, epochs=1)) as (late,):
            missed = len(early.keys) + early.undelivered
            wait_until(lambda: len(early.keys) - len(late.keys) <= 2, "the second draws level")
            taken, made = len(early.keys), produced(daemon)
            assert [receipt.ok for receipt in early.finish() + late.finish()] == [True, True]
    assert early.keys == late.keys == all_keys(1)
    assert produced(daemon) - made <= (BATCHES - taken) * 1.1
    assert produced(daemon) <= BATCHES + missed + 8, "what the second missed is decoded first"


@pytest.mark.long
def test_a_late_trainer_gets_slowly_decoded_batches_from_memory(slow_daemon: Callable[[str], DaemonProcess]) -> None:
    daemon = slow_daemon("128MiB")
    with trainers(Trainer(daemon.endpoint, epochs=1)) as (early,):
        wait_until(lambda: len(early.keys) >= LATE, "the first has taken some")
        with trainers(Trainer(daemon.endpoint, epochs=1)) as (late,):
            assert [receipt.ok for receipt in early.finish() + late.finish()] == [True, True]
    assert early.keys == late.keys == all_keys(1)
    assert produced(daemon) == BATCHES


@pytest.mark.long
def test_trainers_whose_credit_was_reduced_for_each_other_both_finish(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 320})
    tight = stream_config(folder, image={"size": [64, 64]})  # ten slots in all, and each loop holds its last batch
    daemon = start_daemon({"memory": "1MiB", "streams": {"train": tight}})
    with trainers(*(Trainer(daemon.endpoint, epochs=2, start={"together": 2}) for _ in range(2))) as both:
        for each in both:
            assert [receipt.ok for receipt in each.finish()] == [True, True]
