"""What a loop does while no batch comes, told by a clock that the test turns."""

from __future__ import annotations

import gc
import io
import sys

import pytest

from streamd.client import waiting as module
from streamd.client.handoff import Handoff
from streamd.client.session import ReceivedBatch
from streamd.client.waiting import WaitPolicy, print_stderr_line
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


def test_a_daemon_that_is_there_but_slow_never_exhausts_patience_and_is_asked_for_a_sign_of_life(clock: Clock) -> None:
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
    clock.now_s += 1.5
    waiting.check_wait_can_end()
    assert waiting.next_wait_s() == pytest.approx(0.5)
    clock.now_s += 0.5
    with pytest.raises(ConnectError, match=f"at {ENDPOINT}: the daemon has been away for 2 s, which is all the pat"):
        waiting.check_wait_can_end()


def test_what_the_daemon_was_away_before_the_wait_does_not_count(clock: Clock) -> None:
    handoff = served_handoff()
    handoff.mark_daemon_away()
    clock.now_s += 50
    waiting = WaitPolicy(handoff, ENDPOINT, 2.0, nobody_asks)
    assert waiting.next_wait_s() == pytest.approx(2.0)
    waiting.check_wait_can_end()


def test_without_patience_a_line_every_30_s_says_that_the_daemon_is_away(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    handoff = served_handoff()
    handoff.mark_daemon_away()
    waiting = WaitPolicy(handoff, ENDPOINT, None, nobody_asks)
    for _ in range(7):
        clock.now_s += 10
        waiting.check_wait_can_end()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"streamd: no daemon at {ENDPOINT} for {seconds} s; still waiting" for seconds in (30, 60)]


def test_a_daemon_that_puts_a_stream_off_is_not_said_to_be_away(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    handoff = served_handoff()
    handoff.mark_daemon_away()
    waiting = WaitPolicy(handoff, ENDPOINT, None, nobody_asks, describe_refusal=lambda: "20 sessions are open")
    clock.now_s += 30
    waiting.check_wait_can_end()
    said = "streamd: the daemon has put this stream off for 30 s: 20 sessions are open; still waiting\n"
    assert capsys.readouterr().err == said


def test_a_wait_for_others_is_told_every_30_s_for_as_long_as_it_lasts_and_no_patience_counts(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    awaited = ["3 trainers of stream 'train'"]
    waiting = WaitPolicy(served_handoff(), ENDPOINT, 2.0, nobody_asks, lambda: awaited[0])
    for seconds in range(10, 100, 10):
        awaited[0] = awaited[0] if seconds < 80 else ""
        clock.now_s += 10
        waiting.check_wait_can_end()
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


def test_what_is_held_is_not_in_the_way_of_the_daemons_word_on_an_epoch(clock: Clock) -> None:
    handoff, asked = served_handoff(), list[float]()
    hold(handoff, 2)
    waiting = WaitPolicy(handoff, ENDPOINT, None, lambda: asked.append(clock.now_s), for_batch=False)
    for _ in range(3):
        assert waiting.next_wait_s() == SILENCE_S
        clock.now_s += SILENCE_S
        waiting.check_wait_can_end()
    assert asked == [110.0, 120.0, 130.0]


def test_a_batch_given_back_in_time_ends_the_matter(clock: Clock) -> None:
    handoff = served_handoff()
    hold(handoff, 2)
    waiting = WaitPolicy(handoff, ENDPOINT, None, nobody_asks)
    waiting.check_wait_can_end()
    handoff.release_leases(1, [1])
    clock.now_s += 10
    waiting.check_wait_can_end()
    assert waiting.next_wait_s() == SILENCE_S


@pytest.mark.parametrize("stderr", [None, "closed", "broken"])
def test_a_terminal_that_is_gone_ends_no_trainer(monkeypatch: pytest.MonkeyPatch, stderr: str | None) -> None:
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
