"""The worker that adds up the digests of other users: its answers, and what happens when it is not there."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.sample_specs import some_spec

from streamd.core.receipt import DigestPiece, compute_piece_lanes, split_into_pieces
from streamd.core.sampler import SampleOrder
from streamd.core.spec import Cursor, Segment
from streamd.daemon.streams import expected_digests
from streamd.daemon.streams.expected_digests import DigestWorker
from streamd.ipc.worker_messages import MAX_RECORD_BYTES, AddUpDigest, encode_command
from streamd.limits import DIGEST_NICENESS, MAX_SEGMENTS
from streamd.supervisor import worker_process


def build_piece(epoch: int = 0, segments: int = 1) -> DigestPiece:
    spec = some_spec()
    history = tuple(Segment(index, 1, 0, 1) for index in range(segments))
    (piece,) = split_into_pieces(spec, SampleOrder.from_spec(spec), Cursor(epoch, history), 1 << 20)
    return piece


@asynccontextmanager
async def working() -> AsyncIterator[DigestWorker]:
    worker = DigestWorker()
    try:
        yield worker
    finally:
        await worker.stop()


def find_pid(worker: DigestWorker) -> int | None:
    process = worker._worker._process
    return None if process is None else process.pid


async def start_process(worker: DigestWorker) -> int:
    """Has a piece computed, for which the process starts; returns its pid."""
    await worker.compute_piece(build_piece())
    pid = find_pid(worker)
    assert pid is not None
    return pid


async def test_it_computes_what_this_process_would_and_says_how_long_it_took() -> None:
    async with working() as worker:
        assert find_pid(worker) is None, "without a piece there is no process"
        for piece in (build_piece(), build_piece(7), build_piece(1 << 39, MAX_SEGMENTS)):
            computed = await worker.compute_piece(piece)
            assert computed is not None
            lanes, took_s = computed
            assert lanes == compute_piece_lanes(piece)
            assert took_s > 0
        pid = find_pid(worker)
        assert pid is not None
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + DIGEST_NICENESS)


async def test_signals_for_the_daemon_do_not_end_it() -> None:
    async with working() as worker:
        pid = await start_process(worker)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        assert await worker.compute_piece(build_piece(1)) is not None
        assert find_pid(worker) == pid


async def test_a_killed_process_is_started_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with working() as worker:
        pid = await start_process(worker)
        os.kill(pid, signal.SIGKILL)
        assert await worker.compute_piece(build_piece(1)) is None
        assert find_pid(worker) is None
        assert "no process computes the digests of other users (it has ended, killed by SIGKILL)" in caplog.text
        assert await worker.compute_piece(build_piece(2)) is None, "it is not tried again at once"
        monkeypatch.setattr(worker, "_next_start_s", 0.0)
        computed = await worker.compute_piece(build_piece(3))
        assert computed is not None
        assert computed[0] == compute_piece_lanes(build_piece(3))


async def test_a_stopped_process_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with working() as worker:
        pid = await start_process(worker)
        monkeypatch.setattr(expected_digests, "DIGEST_ANSWER_S", 0.05)
        os.kill(pid, signal.SIGSTOP)
        assert await worker.compute_piece(build_piece(1)) is None
        assert find_pid(worker) is None
        assert "it has not answered for 0.05 s" in caplog.text


@pytest.mark.parametrize(
    "error", [BlockingIOError("Resource temporarily unavailable"), RuntimeError("can't start new thread")]
)
async def test_where_no_process_can_start_nothing_is_left_open(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with working() as worker:

        async def refuse(*_arguments: Any, **_options: Any) -> None:
            raise error

        before = len(list(Path("/proc/self/fd").iterdir()))
        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
        assert await worker.compute_piece(build_piece()) is None
        assert str(error) in caplog.text
        assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_it_ends_with_the_daemon() -> None:
    async with working() as worker:
        await worker.compute_piece(build_piece())
        process, leaving = worker._worker._process, worker._worker._exit
        assert process is not None and leaving is not None  # noqa: PT018 - it has just answered
        process._link.shutdown(socket.SHUT_WR)
        assert (await asyncio.wait_for(leaving, 30)).description == "with exit status 0"


async def test_a_process_that_survives_its_kill_is_known_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with working() as worker:
        await worker.compute_piece(build_piece())
        with monkeypatch.context() as waiting_for_disk:
            waiting_for_disk.setattr(worker_process, "kill_child", lambda _process: None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await worker.stop()
            assert worker._worker.is_running
        await worker.stop()
        assert not worker._worker.is_running


def test_a_record_has_room_for_the_longest_history() -> None:
    spec = some_spec()
    longest = tuple(Segment(1 << 53, 1 << 53, 1 << 20, 1 << 20) for _ in range(MAX_SEGMENTS))
    piece = DigestPiece(SampleOrder.from_spec(spec), True, "f" * 32, 1 << 40, longest)
    assert len(encode_command(AddUpDigest(piece))) < MAX_RECORD_BYTES
