"""The rules that a trainer's loop relies on after a close, a fork, an interrupt or the death of its daemon."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.forked_child import in_a_forked_child
from support.keyboard_interrupts import Interrupter
from support.running_trainers import Trainer, trainers

import streamd
from streamd.client import Client, Stream
from streamd.client.leases import HELD_OVER_CONNECTIONS
from streamd.errors import ClosedError, ConnectError, ForkedClientError

pytestmark = pytest.mark.long

SAMPLES: Final = 320
SIZES: Final = [2, 8, 16]  # parts, whole batches, groups
# What next() does; but for finalisers, which also run within it: Python lets no exception out of them.
_LOOP: Final = (
    *(f"/streamd/client/{name}.py" for name in ("stream", "handoff", "batch", "waiting")),
    *(f"/streamd/core/{name}.py" for name in ("receipt", "token")),
    "/threading.py",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("d") / "data", {"cat": SAMPLES})


@pytest.fixture(scope="module")
def daemon(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    with DaemonProcess(place, {"streams": {"train": stream_config(folder)}}) as process:
        yield process
        assert process.terminate() == 0, process.log.read_text()


@pytest.fixture
def own_daemon(start_daemon: Start, folder: Path) -> DaemonProcess:
    """A daemon that a test may kill."""
    return start_daemon({"workers": 1, "streams": {"train": stream_config(folder)}})


@pytest.fixture(scope="module")
def rows(daemon: DaemonProcess) -> list[int]:
    """The samples of two epochs, in order."""
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        return rows_of(stream)


def rows_of(batches: Any) -> list[int]:
    return [int(each) for batch in batches for each in batch.sample_ids]


def sessions(client: Client) -> int:
    return len(client.status().sessions)


def mapped_slots() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:streamd-")


def interrupt_a_wait(stream: Stream) -> None:
    """Ctrl-C, as the main thread gets it, while it waits for a batch: none comes before the lock is free again."""

    def interrupt() -> bool:
        with stream._handoff._lock:
            is_waiting = bool(stream._handoff._waiters)
            if is_waiting:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return is_waiting

    wait_until(interrupt, "the loop waits")


# --- closing


@pytest.mark.parametrize(("size", "slots"), [(2, 1), (8, 3), (16, 0)])
def test_held_batches_outlive_the_stream_and_free_their_memory_when_dropped(
    client: Client, size: int, slots: int
) -> None:
    before = mapped_slots()
    with client.subscribe("train", batch_size=size) as stream:
        held = list(islice(stream, 3))
        copies = [batch.images.copy() for batch in held]
    stream.close()
    assert all((batch.images == copy).all() for batch, copy in zip(held, copies, strict=True))
    assert mapped_slots() - before == slots
    held.clear()
    assert mapped_slots() == before


def test_a_stream_that_nobody_refers_to_ends_its_session_and_its_thread(client: Client) -> None:
    gc.disable()  # by counting references, and not some time later
    try:
        batch = next(iter(client.subscribe("train", batch_size=2)))
        wait_until(lambda: not sessions(client), "its session has ended")
        wait_until(lambda: "streamd-client" not in {each.name for each in threading.enumerate()}, "its thread too")
    finally:
        gc.enable()
    assert batch.images.any()
    assert batch.token


@pytest.mark.long
def test_a_stream_keeps_the_daemon_of_its_local_client_running(folder: Path) -> None:
    stream = streamd.local({"workers": 1, "streams": {"train": stream_config(folder)}}).subscribe("train", epochs=1)
    gc.collect()
    assert sum(1 for _ in stream) == len(stream)
    stream.close()
    del stream


# --- forking


@pytest.mark.fault("45", "a child that reads, closes and drops what it got by a fork in mid-epoch")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("size", SIZES)
def test_a_forked_child_reads_its_batches_but_not_the_stream_and_its_parent_is_unaffected(
    client: Client, rows: list[int], size: int
) -> None:
    with client.subscribe("train", epochs=1, prefetch=2, batch_size=size) as stream:
        batches = iter(stream)
        held = list(islice(batches, 2))
        seen = rows_of(held)

        def use_it() -> None:
            with stream:
                assert held[0].images.any()
                assert stream.token == held[-1].token
                for use in (lambda: next(batches), lambda: list(stream), lambda: list(stream.epochs())):
                    with pytest.raises(ForkedClientError):
                        use()
                held.clear()

        assert in_a_forked_child(use_it) == 0
        assert held[0].images.any()
        held.clear()
        assert seen + rows_of(batches) == rows[:SAMPLES]
        assert stream.receipts[0].ok


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.fault("45", "a child that keeps its views while its parent reads on, memory being short")
def test_a_batch_that_a_forked_child_holds_stays_unchanged_while_its_parent_reads_on(client: Client) -> None:
    with client.subscribe("train", epochs=2, prefetch=2) as stream:
        batches = iter(stream)
        held = [next(batches)]
        copy = held[0].images.copy()
        go_on = os.pipe()
        if not (child := os.fork()):
            os.read(go_on[0], 1)
            os._exit(0 if (held[0].images == copy).all() else 1)
        held.clear()
        assert sum(1 for _ in batches) == 2 * len(stream) - 1
        os.write(go_on[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for end in go_on:
            os.close(end)


@pytest.mark.parametrize("is_error_kept", [False, True], ids=["error dropped", "error kept by the program"])
def test_a_loop_that_is_closed_while_it_waits_keeps_no_batch(
    daemon: DaemonProcess, client: Client, *, is_error_kept: bool
) -> None:
    seen: list[int] = []
    kept: list[ClosedError] = []

    def read_until_closed(stream: Stream) -> None:
        try:
            for batch in stream:
                seen.append(batch.index)  # noqa: PERF401 - a loop that holds its batch
        except ClosedError as error:
            if is_error_kept:
                kept.append(error)

    threads = set(threading.enumerate())
    stream = client.subscribe("train", prefetch=2)
    reading = threading.Thread(target=read_until_closed, args=[stream])
    reading.start()
    wait_until(lambda: seen, "the loop has a batch")
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: stream._handoff._waiters, "the loop waits for a batch")
        stream.close()
        reading.join()
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    # `close` does not wait for an I/O thread that the stopped daemon owes the memory of the next batch.
    wait_until(lambda: set(threading.enumerate()) <= threads, "the stream's thread ends")
    if is_error_kept:  # its traceback holds the loop's frame, until the program drops it together with the stream
        assert len(HELD_OVER_CONNECTIONS) == 1
        holder: list[object] = [stream, kept.pop()]
        holder.append(holder)
        del stream, holder
        gc.collect()
    assert not HELD_OVER_CONNECTIONS


# --- interrupting


@pytest.mark.parametrize("size", SIZES)
def test_an_interrupted_wait_loses_nothing_and_the_same_iterator_continues(
    daemon: DaemonProcess, client: Client, rows: list[int], size: int
) -> None:
    with client.subscribe("train", epochs=1, batch_size=size, prefetch=2) as stream:
        batches = iter(stream)
        taken = rows_of(islice(batches, 3))
        daemon.process.send_signal(signal.SIGSTOP)
        interrupting = threading.Thread(target=interrupt_a_wait, args=[stream])
        interrupting.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                taken.extend(int(each) for batch in batches for each in batch.sample_ids)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
            interrupting.join()
        assert taken + rows_of(batches) == rows[:SAMPLES]
        assert stream.receipts[0].ok


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "step", ["streamd.client.stream.Stream._build_receipt", "streamd.client.stream.Handoff.move_cursor"]
)
def test_an_interrupt_while_a_receipt_is_built_loses_neither_receipt_nor_batches(
    client: Client, rows: list[int], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with client.subscribe("train", epochs=2) as stream:
        batches = iter(stream)
        taken = rows_of(islice(batches, len(stream)))
        with monkeypatch.context() as patch:
            patch.setattr(step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        assert taken + rows_of(batches) == rows
        assert [(each.epoch, each.ok) for each in stream.receipts] == [(0, True), (1, True)]


def test_an_interrupted_seek_leaves_the_stream_where_it_was(
    client: Client, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.subscribe("train", epochs=1) as stream:
        batches, start = iter(stream), stream.token
        taken = rows_of(islice(batches, 4))
        for step in ("stop", "start"):
            with monkeypatch.context() as patch:
                patch.setattr(f"streamd.client.stream.IOThread.{step}", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    stream.seek(start)
            if step == "stop":
                taken += rows_of(islice(batches, 4))
        assert rows_of(batches) == rows[:SAMPLES]  # the second time it had got there
        assert taken == rows[:64]


@pytest.mark.parametrize(("size", "every"), [(2, 1), (8, 2), (16, 3)])
def test_an_interrupt_at_any_moment_is_raised_and_loses_and_repeats_nothing(
    client: Client, rows: list[int], size: int, every: int
) -> None:
    """Between batches, within a wait, at an epoch's end, and where the stream goes back after the interrupt before."""
    moments = [[moment, 0] for moment in range(1, 60)] + [[1, moment, 0] for moment in range(1, 240, 5)]
    interrupts = 0
    with client.subscribe("train", epochs=2, batch_size=size, prefetch=2) as stream:
        batches, taken = iter(stream), list[int]()
        for moment in chain.from_iterable(moments[::every]):
            interrupter = Interrupter(moment, _LOOP)
            try:
                taken += rows_of(filter(None, [interrupter.call(partial(next, batches, None))]))
            except KeyboardInterrupt:
                interrupts += 1
            else:
                assert not 0 < moment <= interrupter.passed, "an interrupt was lost"
        assert taken + rows_of(batches) == rows
        assert [(each.epoch, each.complete, each.ok) for each in stream.receipts] == [(0, True, True), (1, True, True)]
    assert interrupts > 70 // every


# --- waiting for company, and for a daemon


def test_the_iterator_that_ran_out_of_patience_continues_when_the_daemon_is_back(
    own_daemon: DaemonProcess, rows: list[int]
) -> None:
    with (
        streamd.connect(own_daemon.endpoint, patience=0.1) as client,
        client.subscribe("train", epochs=1, batch_size=16) as stream,
    ):
        batches = iter(stream)
        taken = rows_of(islice(batches, 2))
        own_daemon.process.kill()
        own_daemon.process.wait()
        for _ in range(2):
            with pytest.raises(ConnectError, match="as long as patience allows"):
                taken.extend(int(each) for batch in batches for each in batch.sample_ids)
        own_daemon.start()
        wait_until(lambda: stream._handoff.away_since_s is None, "the session stands again")
        assert taken + rows_of(batches) == rows[:SAMPLES]
        assert stream.receipts[0].ok


@pytest.mark.long
def test_a_killed_daemon_loses_and_repeats_no_row_for_any_kind_of_subscription(
    own_daemon: DaemonProcess, rows: list[int]
) -> None:
    wishes: list[dict[str, Any]] = [
        *({"batch_size": size} for size in SIZES),
        {"rank": 1, "world": 2, "batch_size": 2},
        {"uneven": "pad", "rank": 2, "world": 3},
        {"start": {"together": 8}, "batch_size": 16},
        {"start": {"together": 8}, "batch_size": 2},
        {"start": "live", "batch_size": 4, "epochs": 1},
    ]
    several = [Trainer(own_daemon.endpoint, allowed=7, **{"epochs": 2, **wish}) for wish in wishes]
    with trainers(*several):
        wait_until(lambda: all(len(each.keys) == 7 for each in several), "all are in the midst")
        several.pop(4).finish()  # fewer than eight are there from now on: who has begun together needs nobody
        del wishes[4]
        own_daemon.restart_after_kill()
        for each, wish in zip(several, wishes, strict=True):
            assert all(receipt.ok for receipt in each.finish()), wish
        assert [each.rows == rows for each in several[:3]] == [True] * 3
        assert [each.rows == rows for each in several[4:6]] == [True] * 2
        assert len(several[3].rows) == len(set(several[3].rows[: SAMPLES // 2])) * 2 == SAMPLES
        assert several[6].rows == rows[SAMPLES - len(several[6].rows) : SAMPLES]
