"""The process that computes the digests of other users: its answers, and what happens when it is not there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.daemon_process import wait_until
from support.sample_specs import some_spec

from streamd.core.receipt import DigestPiece, compute_piece_lanes, split_into_pieces
from streamd.core.sampler import SampleOrder
from streamd.core.spec import Cursor, Segment
from streamd.daemon.streams.digest_process import _MESSAGE_BYTES, DigestProcess
from streamd.limits import DIGEST_ANSWER_S, DIGEST_NICENESS, MAX_SEGMENTS


def build_piece(epoch: int = 0, segments: int = 1) -> DigestPiece:
    spec = some_spec()
    history = tuple(Segment(index, 1, 0, 1) for index in range(segments))
    (piece,) = split_into_pieces(spec, SampleOrder.from_spec(spec), Cursor(epoch, history), 1 << 20)
    return piece


@pytest.fixture
def process() -> Iterator[DigestProcess]:
    with contextlib.closing(DigestProcess()) as started:
        yield started


def find_pid(process: DigestProcess) -> int:
    assert process._process is not None
    return process._process.pid


def test_it_computes_what_this_process_would_and_says_how_long_it_took(process: DigestProcess) -> None:
    for piece in (build_piece(), build_piece(7), build_piece(1 << 39, MAX_SEGMENTS)):
        lanes, took_s = process.compute_piece(piece)
        assert lanes == compute_piece_lanes(piece)
        assert took_s > 0
    assert os.getpriority(os.PRIO_PROCESS, find_pid(process)) == DIGEST_NICENESS


def test_without_a_piece_there_is_no_process() -> None:
    process = DigestProcess()
    process.close()
    assert process._process is None


def test_signals_for_the_daemon_do_not_end_it(process: DigestProcess) -> None:
    process.compute_piece(build_piece())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(find_pid(process), number)
    pid = find_pid(process)
    process.compute_piece(build_piece(1))
    assert find_pid(process) == pid


def test_a_killed_process_loses_no_digest_and_is_started_again_later(
    process: DigestProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process.compute_piece(build_piece())
    os.kill(find_pid(process), signal.SIGKILL)
    assert process.compute_piece(build_piece(1))[0] == compute_piece_lanes(build_piece(1))
    assert process._process is None
    assert "no process computes the digests of other users" in caplog.text
    process.compute_piece(build_piece(2))
    assert process._process is None, "it is not tried again at once"
    monkeypatch.setattr(process, "_next_start_s", 0.0)
    assert process.compute_piece(build_piece(3))[0] == compute_piece_lanes(build_piece(3))
    assert process._process is not None


def test_a_stopped_process_is_given_up_and_loses_no_digest(
    process: DigestProcess, caplog: pytest.LogCaptureFixture
) -> None:
    process.compute_piece(build_piece())
    assert process._link is not None
    assert process._link.gettimeout() == DIGEST_ANSWER_S
    process._link.settimeout(0.05)
    os.kill(find_pid(process), signal.SIGSTOP)
    assert process.compute_piece(build_piece(1))[0] == compute_piece_lanes(build_piece(1))
    assert process._process is None
    assert "timed out" in caplog.text


def test_where_no_process_can_start_this_one_computes(
    process: DigestProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert process.compute_piece(build_piece())[0] == compute_piece_lanes(build_piece())
    assert "Resource temporarily unavailable" in caplog.text
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_it_ends_with_the_daemon() -> None:
    process = DigestProcess()
    process.compute_piece(build_piece())
    assert process._link is not None
    process._link.close()
    assert process._process is not None
    wait_until(lambda: process._process is not None and process._process.poll() == 0, "it has ended by itself")


def test_a_message_has_room_for_the_longest_history() -> None:
    spec = some_spec()
    longest = tuple(Segment(1 << 53, 1 << 53, 1 << 20, 1 << 20) for _ in range(MAX_SEGMENTS))
    piece = DigestPiece(SampleOrder.from_spec(spec), True, "f" * 32, 1 << 40, longest)
    assert len(msgspec.json.encode(piece)) < _MESSAGE_BYTES
