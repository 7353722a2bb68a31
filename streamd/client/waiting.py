"""What a loop does while nothing comes: asks for a sign of life, collects garbage, and knows when to give up."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from streamd.client.handoff import Handoff
from streamd.errors import BatchesHeldError, ConnectError
from streamd.limits import AWAY_LINE_S, HELD_COLLECT_S, HELD_ERROR_S, SILENCE_S


def print_stderr_line(text: str) -> None:
    """A line on stderr, for whoever reads it: a trainer goes on when its terminal is gone."""
    with suppress(OSError, ValueError, AttributeError):  # a broken pipe, a closed file, none at all
        sys.stderr.write(f"streamd: {text}\n")


class WaitPolicy:
    """One wait.

    `next_wait_s` is how long to sleep, `check_wait_can_end` decides what to do when the sleep brought nothing.
    `ping_daemon` asks a daemon that is there whether it still knows of this session: one that was stopped, or lost a
    frame, is thereby found out. `awaited` says whom or what it waits for, "" for nothing: that is told, and no
    patience counts. `describe_refusal` says why a daemon that is there does not let it in yet, "" where that is not
    so. Batches that the caller holds are in the way of the next one (`for_batch`), and of nothing else.
    """

    def __init__(
        self,
        handoff: Handoff,
        endpoint: str,
        patience_s: float | None,
        ping_daemon: Callable[[], None],
        describe_awaited: Callable[[], str] = str,
        *,
        describe_refusal: Callable[[], str] = str,
        for_batch: bool = True,
    ) -> None:
        self._handoff = handoff
        self._endpoint = endpoint
        self._patience_s = patience_s
        self._ping_daemon = ping_daemon
        self._describe_awaited = describe_awaited
        self._describe_refusal = describe_refusal
        self._for_batch = for_batch
        self._since_s = time.monotonic()
        self._printed_s = self._since_s
        self._has_collected = False

    def next_wait_s(self) -> float:
        """Until the next thing that could be worth doing."""
        if self._list_credit_blocking_batches():
            return HELD_ERROR_S if self._has_collected else HELD_COLLECT_S
        away_since_s = self._handoff.away_since_s
        if away_since_s is None:
            return SILENCE_S
        if self._patience_s is None:
            return AWAY_LINE_S
        left_s = max(away_since_s, self._since_s) + self._patience_s - time.monotonic()
        return max(0.001, min(AWAY_LINE_S, left_s))

    def check_wait_can_end(self) -> None:
        """Raises BatchesHeldError when the caller itself is the reason, ConnectError when patience is over."""
        held = self._list_credit_blocking_batches()
        if held and self._has_collected:
            raise BatchesHeldError(held, self._handoff.count_ended_connection_batches())
        if held:
            gc.collect()
            self._has_collected = True
            return
        self._check_daemon_patience(time.monotonic())

    def _list_credit_blocking_batches(self) -> list[tuple[int, int]]:
        return self._handoff.list_credit_blocking_batches() if self._for_batch else []

    def _check_daemon_patience(self, now_s: float) -> None:
        away_since_s = self._handoff.away_since_s
        if away_since_s is None:
            self._ping_daemon()
            if awaited := self._describe_awaited():
                self._print_line_if_due(now_s, f"waiting until {awaited} are there; `streamd status` says more")
            return
        away_s = now_s - max(away_since_s, self._since_s)
        if self._patience_s is not None and away_s >= self._patience_s:
            raise ConnectError(
                self._endpoint, f"the daemon has been away for {away_s:.0f} s, which is all the patience allowed"
            )
        if refusal := self._describe_refusal():
            self._print_line_if_due(
                now_s, f"the daemon has put this stream off for {away_s:.0f} s: {refusal}; still waiting"
            )
        else:
            self._print_line_if_due(now_s, f"no daemon at {self._endpoint} for {away_s:.0f} s; still waiting")

    def _print_line_if_due(self, now_s: float, text: str) -> None:
        if now_s >= self._printed_s + AWAY_LINE_S:
            self._printed_s = now_s
            print_stderr_line(text)
