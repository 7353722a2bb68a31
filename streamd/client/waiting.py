"""What a loop does while it waits: pings the daemon, prints what it waits for, and decides when to give up."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from streamd.client.handoff import Handoff
from streamd.client.sockets import is_socket_listening
from streamd.errors import BatchesHeldError, ConnectError
from streamd.limits import AWAY_FIRST_LINE_S, AWAY_LINE_S, HELD_COLLECT_S, HELD_ERROR_S, SILENCE_S


def print_stderr_line(text: str, *, after_progress: bool = False) -> None:
    """Prints a line on stderr. A failure to print is ignored, so that a trainer survives the loss of its terminal.

    `after_progress`: a progress bar may have left the cursor at the end of its line, so a new line is begun on a
    terminal.
    """
    with suppress(OSError, ValueError, AttributeError):  # a broken pipe, a closed file, no stderr at all
        begin = "\n" if after_progress and sys.stderr.isatty() else ""
        sys.stderr.write(f"{begin}streamd: {text}\n")


class AbsenceReporter:
    """Prints one line for all streams of a client when its daemon is away, and one when it is back.

    The streams may wait in several threads: the lock guards the times of the last line and of the last absence.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._printed_s: float | None = None  # time of the last line about the present absence
        self._ended_s = float("-inf")  # end of the last absence for which a line was printed

    def compute_next_line_s(self, since_s: float) -> float:
        """Returns when to print the next line about a daemon that has been away since `since_s`."""
        with self._lock:
            if self._printed_s is not None:
                return self._printed_s + AWAY_LINE_S
            return max(since_s, self._ended_s) + AWAY_FIRST_LINE_S

    def report_absence(self, now_s: float, since_s: float, describe_absence: Callable[[], str]) -> bool:
        """Prints a line if one is due, and returns whether it did."""
        # The lock decides which of several waiting threads prints; printing itself may block and is done without it.
        with self._lock:
            if now_s < self.compute_next_line_s(since_s):
                return False
            is_first, self._printed_s = self._printed_s is None, now_s
        print_stderr_line(describe_absence(), after_progress=is_first)
        return True

    def end_absence(self, now_s: float) -> bool:
        """Ends the present absence, and returns whether any line was printed for it."""
        with self._lock:
            if self._printed_s is None:
                return False
            self._printed_s, self._ended_s = None, now_s
            return True


@dataclass
class WaitPolicy:
    """The policy of one wait: how long to sleep, what to print, and when to give up.

    `next_wait_s` returns how long to sleep. `check_wait_can_end` acts after a sleep without result. `end_wait` must be
    called however the wait ends.

    ping_daemon: sends a ping, which finds out whether a present daemon was stopped or has lost a frame.
    describe_awaited: returns what the daemon itself waits for, "" for nothing; it is printed from time to time, and
        patience does not run out meanwhile.
    describe_refusal: returns why a daemon that answers has put the stream off, "" if it has not.
    describe_place: returns where the stream continues.
    wanted: what is waited for, in words.
    for_batch: a batch is waited for, which batches that the caller holds can prevent; they prevent nothing else.
    """

    handoff: Handoff
    endpoint: str
    patience_s: float | None
    ping_daemon: Callable[[], None]
    describe_awaited: Callable[[], str] = str
    _: KW_ONLY
    describe_refusal: Callable[[], str] = str
    describe_place: Callable[[], str] = lambda: "the stream continues"
    wanted: str = "batch"
    reporter: AbsenceReporter = field(default_factory=AbsenceReporter)
    for_batch: bool = True

    def __post_init__(self) -> None:
        self._since_s = time.monotonic()
        self._served_since_s = self._since_s  # since when the daemon is present and waits for nothing itself
        self._printed_s = self._since_s
        self._away_since_s = self._since_s
        self._return_text = ""  # the start of the line about the daemon's return; "" while no absence was reported
        self._has_collected = False  # garbage was collected, because the caller holds all the credit

    def next_wait_s(self) -> float:
        """Returns the seconds until `check_wait_can_end` may have something to do."""
        if self._list_credit_blocking_batches():
            return HELD_ERROR_S if self._has_collected else HELD_COLLECT_S
        away_since_s = self.handoff.away_since_s
        if away_since_s is None:
            return SILENCE_S
        since_s = max(away_since_s, self._since_s)
        next_s = self.reporter.compute_next_line_s(since_s)
        if self.patience_s is not None:
            next_s = min(next_s, since_s + self.patience_s)
        return max(0.001, next_s - time.monotonic())

    def check_wait_can_end(self) -> None:
        """Pings, prints or gives up, as the daemon's state requires.

        Raises BatchesHeldError when the caller holds all the credit, ConnectError when patience is over.
        """
        # The first time all credit is held, reference cycles may be the holders: collect them, and raise only if that
        # did not help by the next call.
        held = self._list_credit_blocking_batches()
        if held and self._has_collected:
            raise BatchesHeldError(held, self.handoff.count_ended_connection_batches())
        if held:
            gc.collect()
            self._has_collected = True
            return
        now_s = time.monotonic()
        # The daemon is away: patience runs, and a line about it is printed from time to time.
        if (away_since_s := self.handoff.away_since_s) is not None:
            since_s, self._away_since_s, self._served_since_s = max(away_since_s, self._since_s), away_since_s, now_s
            away_s = now_s - since_s
            if self.patience_s is not None and away_s >= self.patience_s:
                refusal = self.describe_refusal()
                absence = "has not admitted this stream" if refusal else "has been away"
                why = f"the daemon {absence} for {away_s:.0f} s, which is as long as patience allows"
                raise ConnectError(self.endpoint, f"{why}: {refusal}" if refusal else why)
            self.reporter.report_absence(now_s, since_s, partial(self._describe_absence, now_s - away_since_s))
            return
        # Standard case: the daemon is present. It is pinged, and a line says from time to time what is waited for.
        self._report_return(now_s)
        self.ping_daemon()
        awaited = self.describe_awaited()
        line = ""
        if awaited and now_s >= self._printed_s + AWAY_LINE_S:
            line = f"waiting until {awaited} are there; `streamd status` says more"
        # A daemon that does not answer a ping counts as away, so a present one has answered the ping before this one.
        if not awaited and now_s >= max(self._served_since_s, self._printed_s) + AWAY_LINE_S:
            line = (
                f"no {self.wanted} for {now_s - self._served_since_s:.0f} s; the daemon at {self.endpoint} is "
                "running, and `streamd status` shows what it is doing"
            )
        if line:
            is_first, self._printed_s = self._printed_s == self._since_s, now_s
            print_stderr_line(line, after_progress=is_first)
        if awaited:
            self._served_since_s = now_s

    def end_wait(self) -> None:
        """Prints that the daemon is back if its absence was reported; drops that report if the daemon is still away."""
        now_s = time.monotonic()
        if self.handoff.away_since_s is None:
            self._report_return(now_s)
        elif self._return_text:
            self.reporter.end_absence(now_s)

    def _list_credit_blocking_batches(self) -> list[tuple[int, int]]:
        return self.handoff.list_credit_blocking_batches() if self.for_batch else []

    def _describe_absence(self, away_s: float) -> str:
        """Returns the line to print, and chooses the text of the later line about the daemon's return."""
        if refusal := self.describe_refusal():
            self._return_text = "the daemon has admitted this stream"
            return f"the daemon has not admitted this stream for {away_s:.0f} s: {refusal}; still waiting"
        limit = "" if self.patience_s is None else f", at most {self.patience_s:g} s"
        if is_socket_listening(self.endpoint):
            self._return_text = f"the daemon at {self.endpoint} answers again"
            return (
                f"no answer for {away_s:.0f} s from the daemon at {self.endpoint}, whose socket is open: it is "
                f"starting, busy or stopped; waiting until it answers{limit}"
            )
        self._return_text = f"the daemon at {self.endpoint} is back"
        return f"no daemon at {self.endpoint} for {away_s:.0f} s; waiting until it is back{limit}"

    def _report_return(self, now_s: float) -> None:
        if self._return_text:
            # Another stream of the client may have printed it.
            if self.reporter.end_absence(now_s):
                away_s = now_s - self._away_since_s
                print_stderr_line(f"{self._return_text} after {away_s:.0f} s; {self.describe_place()}")
            self._return_text = ""
