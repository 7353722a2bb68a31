"""What a loop does and prints while no batch comes, with a clock that the test advances."""

from __future__ import annotations

import gc
import io
import sys
from functools import partial
from typing import Any

import pytest

from streamd.client import waiting as module
from streamd.client.handoff import Handoff
from streamd.client.leases import ReceivedBatch
from streamd.client.waiting import AbsenceReporter, WaitPolicy, print_stderr_line
from streamd.core.spec import Cursor
from streamd.errors import BatchesHeldError, ConnectError
from streamd.ipc.messages import BatchReady
from streamd.limits import HELD_COLLECT_S, HELD_ERROR_S, SILENCE_S

ENDPOINT = "ipc:///run/x"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def pass_time(self, seconds: float, *waits: WaitPolicy) -> None:
        """Advances the clock, and lets these waits check the handoff."""
        self.now_s += seconds
        for each in waits:
            each.check_wait_can_end()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("streamd.client.handoff.time", clock)
    monkeypatch.setattr(module, "time", clock)
    return clock


def served_handoff(credit: int = 2) -> Handoff:
    handoff = Handoff(Cursor())
    handoff.reset_for_new_connection()
    handoff.mark_session_open(credit)
    return handoff


def nobody_asks() -> None:
    """Where it does not matter."""


def hold(handoff: Handoff, count: int) -> None:
    cursor = Cursor(3)
    for index in range(count):
        handoff.put_batches([ReceivedBatch(index, BatchReady(3, index, 1, 7, 64, inline=False), 1)])
        cursor = cursor.after_step(0, 1)
        handoff.take_batch(cursor, 0)


def test_a_slow_daemon_never_exhausts_patience_and_is_pinged(clock: Clock) -> None:
    asked: list[float] = []
    waiting = WaitPolicy(served_handoff(), ENDPOINT, 2.0, lambda: asked.append(clock.now_s))
    clock.now_s += 1000
    assert waiting.next_wait_s() == SILENCE_S
    waiting.check_wait_can_end()
    assert asked == [1100.0]


def test_patience_counts_from_when_the_daemon_went_away(clock: Clock) -> None:
    handoff = served_handoff()
    waiting = WaitPolicy(handoff, ENDPOINT, 2.0, nobody_asks)
    clock.now_s += 10
    handoff.mark_daemon_away()
    assert waiting.next_wait_s() == pytest.approx(2.0)
    clock.pass_time(1.5, waiting)
    assert waiting.next_wait_s() == pytest.approx(0.5)
    with pytest.raises(ConnectError, match=f"at {ENDPOINT}: the daemon has been away for 2 s, which is as long as pat"):
        clock.pass_time(0.5, waiting)


def test_absence_before_the_wait_does_not_count(clock: Clock) -> None:
    handoff = served_handoff()
    handoff.mark_daemon_away()
    clock.now_s += 50
    waiting = WaitPolicy(handoff, ENDPOINT, 2.0, nobody_asks)
    assert waiting.next_wait_s() == pytest.approx(2.0)
    waiting.check_wait_can_end()


def absent(endpoint: str, patience_s: float | None = None, **more: Any) -> tuple[Handoff, WaitPolicy]:
    """A wait whose daemon goes away when the wait begins."""
    handoff = served_handoff()
    handoff.mark_daemon_away()
    return handoff, WaitPolicy(handoff, endpoint, patience_s, nobody_asks, **more)


def test_a_daemon_that_is_gone_gets_a_line_after_2_s_then_every_30_s_and_one_when_it_is_back(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    handoff, waiting = absent(ENDPOINT, describe_place=lambda: "stream 'train' continues at epoch 3, index 17")
    slept: list[float] = []
    for _ in range(3):
        slept.append(waiting.next_wait_s())
        clock.pass_time(slept[-1], waiting)
    clock.now_s += 5
    handoff.mark_session_open(2)
    waiting.check_wait_can_end()
    waiting.end_wait()
    assert slept == pytest.approx([2, 30, 30])
    gone = [f"streamd: no daemon at {ENDPOINT} for {seconds} s; waiting until it is back" for seconds in (2, 32, 62)]
    back = f"streamd: the daemon at {ENDPOINT} is back after 67 s; stream 'train' continues at epoch 3, index 17"
    assert capsys.readouterr().err.splitlines() == [*gone, back]


def test_a_daemon_that_is_back_within_2_s_gets_no_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    handoff, waiting = absent(ENDPOINT)
    clock.pass_time(1.9, waiting)
    handoff.mark_session_open(2)
    clock.pass_time(5, waiting)
    waiting.end_wait()
    assert capsys.readouterr().err == ""


def test_two_streams_of_a_client_that_wait_print_one_line_for_both(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = AbsenceReporter()
    pairs = [absent(ENDPOINT, reporter=reporter, describe_place=partial(str, name)) for name in ("train", "validation")]
    for seconds in (2, 1, 29, 1):
        clock.pass_time(seconds, *(waiting for _, waiting in pairs))
    for handoff, waiting in pairs:
        handoff.mark_session_open(2)
        waiting.end_wait()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" for ")[2].partition(";")[0] for line in lines[:-1]] == ["2 s", "32 s"]
    assert lines[-1] == f"streamd: the daemon at {ENDPOINT} is back after 33 s; train"


def test_an_interrupted_wait_causes_no_return_line_in_a_later_wait(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = AbsenceReporter()
    _, interrupted = absent(ENDPOINT, reporter=reporter)
    clock.pass_time(3, interrupted)
    interrupted.end_wait()
    capsys.readouterr()
    handoff, waiting = absent(ENDPOINT, reporter=reporter)
    clock.pass_time(1, waiting)
    handoff.mark_session_open(2)
    waiting.end_wait()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("how", "is_listening", "gone", "back"),
    [
        pytest.param(
            {"patience_s": 60.0},
            False,
            f"no daemon at {ENDPOINT} for 2 s; waiting until it is back, at most 60 s",
            f"the daemon at {ENDPOINT} is back after 2 s; the stream continues",
            id="gone, with a limit on patience",
        ),
        pytest.param(
            {},
            True,
            f"no answer for 2 s from the daemon at {ENDPOINT}, whose socket is open: it is starting, busy or stopped; "
            "waiting until it answers",
            f"the daemon at {ENDPOINT} answers again after 2 s; the stream continues",
            id="silent, with an open socket",
        ),
        pytest.param(
            {"describe_refusal": lambda: "20 sessions are open"},
            True,
            "the daemon has not admitted this stream for 2 s: 20 sessions are open; still waiting",
            "the daemon has admitted this stream after 2 s; the stream continues",
            id="present, but the stream is not admitted",
        ),
    ],
)
def test_the_lines_tell_a_gone_from_a_silent_and_a_refusing_daemon(
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    is_listening: bool,
    gone: str,
    back: str,
) -> None:
    monkeypatch.setattr(module, "is_socket_listening", lambda _: is_listening)
    handoff, waiting = absent(ENDPOINT, **how)
    clock.pass_time(2, waiting)
    handoff.mark_session_open(2)
    waiting.end_wait()
    assert capsys.readouterr().err.splitlines() == [f"streamd: {gone}", f"streamd: {back}"]


def test_a_slow_daemon_is_reported_as_present(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = WaitPolicy(served_handoff(), ENDPOINT, None, nobody_asks, wanted="batch of stream 'train'")
    for _ in range(7):
        clock.pass_time(10, waiting)
    assert capsys.readouterr().err.splitlines() == [
        f"streamd: no batch of stream 'train' for {seconds} s; the daemon at {ENDPOINT} is running, and `streamd "
        "status` shows what it is doing"
        for seconds in (30, 60)
    ]


def test_a_line_begins_after_a_progress_bar_that_a_terminal_shows(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO("17/120 ...")
    terminal.seek(0, io.SEEK_END)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    _, waiting = absent(ENDPOINT)
    for seconds in (2, 30):
        clock.pass_time(seconds, waiting)
    assert [line[:23] for line in terminal.getvalue().splitlines()] == ["17/120 ...", *["streamd: no daemon at i"] * 2]


def test_a_wait_for_other_trainers_prints_a_line_every_30_s_and_exhausts_no_patience(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    awaited = ["3 trainers of stream 'train'"]
    waiting = WaitPolicy(served_handoff(), ENDPOINT, 2.0, nobody_asks, lambda: awaited[0])
    for seconds in range(10, 100, 10):
        awaited[0] = awaited[0] if seconds < 80 else ""
        clock.pass_time(10, waiting)
    line = "streamd: waiting until 3 trainers of stream 'train' are there; `streamd status` says more"
    assert capsys.readouterr().err.splitlines() == [line] * 2


def test_holding_everything_collects_garbage_first_and_then_names_the_batches(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    collections: list[float] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(clock.now_s))
    handoff = served_handoff()
    hold(handoff, 2)
    waiting = WaitPolicy(handoff, ENDPOINT, None, nobody_asks)
    assert waiting.next_wait_s() == HELD_COLLECT_S
    waiting.check_wait_can_end()
    assert len(collections) == 1
    assert waiting.next_wait_s() == HELD_ERROR_S
    with pytest.raises(BatchesHeldError, match=r"2 batches are still held \(epoch:index 3:0, 3:1\)") as raised:
        waiting.check_wait_can_end()
    assert raised.value.held == ((3, 0), (3, 1))


def test_held_batches_do_not_block_a_wait_for_a_receipt(clock: Clock) -> None:
    handoff, asked = served_handoff(), list[float]()
    hold(handoff, 2)
    waiting = WaitPolicy(handoff, ENDPOINT, None, lambda: asked.append(clock.now_s), for_batch=False)
    for _ in range(3):
        assert waiting.next_wait_s() == SILENCE_S
        clock.pass_time(SILENCE_S, waiting)
    assert asked == [110.0, 120.0, 130.0]


def test_a_batch_returned_in_time_prevents_the_held_batches_error(clock: Clock) -> None:
    handoff = served_handoff()
    hold(handoff, 2)
    waiting = WaitPolicy(handoff, ENDPOINT, None, nobody_asks)
    waiting.check_wait_can_end()
    handoff.release_leases(1, [1])
    clock.pass_time(10, waiting)
    assert waiting.next_wait_s() == SILENCE_S


@pytest.mark.parametrize("stderr", [None, "closed", "broken"])
def test_a_closed_or_broken_stderr_does_not_end_the_trainer(
    monkeypatch: pytest.MonkeyPatch, stderr: str | None
) -> None:
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    streams = {None: None, "closed": io.StringIO(), "broken": Broken()}
    stream = streams[stderr]
    if stderr == "closed":
        assert stream is not None
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    print_stderr_line("still waiting")


def test_a_refused_stream_that_runs_out_of_patience_is_told_why(clock: Clock) -> None:
    handoff = served_handoff()
    why = "the daemon does not allow this client's key"
    waiting = WaitPolicy(handoff, ENDPOINT, 2.0, nobody_asks, describe_refusal=lambda: why)
    handoff.mark_daemon_away()
    with pytest.raises(ConnectError, match=f"has not admitted this stream for 2 s, .* patience allows: {why}"):
        clock.pass_time(2.0, waiting)
