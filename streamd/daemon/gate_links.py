"""The gates of one kind that run, and the clients behind them: what the keepers of both kinds have in common."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from streamd.daemon.gate_process import GateProcess, Role
from streamd.limits import GATE_RESTART_MAX_S, GATE_RESTART_S, QUESTION_WEIGHT

# --- What the frames of one gate cost the users behind it, with questions weighed. Pure.

_LEAST_S: Final = 1e-9  # of a frame for which the clock did not move


@dataclass(slots=True)
class FrameCharges:
    """Divides the time of one turn of a link among the users whose frames were handled in it.

    A turn takes longer than its frames: each user bears a part of it, by the time that its own frames took. `owner`
    bears a turn without frames, if there is only one user behind the gate.
    """

    owner: int | None = None
    _times_s: dict[int, float] = field(default_factory=dict)  # by user
    _weighted_s: dict[int, float] = field(default_factory=dict)

    def add_frame(self, user: int, took_s: float, *, is_question: bool) -> None:
        """Notes a frame of a user. A question costs more than its time."""
        took_s = max(took_s, _LEAST_S)
        self._times_s[user] = self._times_s.get(user, 0.0) + took_s
        weight = QUESTION_WEIGHT if is_question else 1.0
        self._weighted_s[user] = self._weighted_s.get(user, 0.0) + weight * took_s

    def take_charges(self, took_s: float) -> dict[int, float]:
        """Returns what to charge each user for a turn that took this long, in seconds, and begins the next turn."""
        if not self._times_s:
            return {} if self.owner is None else {self.owner: took_s}
        whole_s = sum(self._times_s.values())
        charges = {user: took_s * weighted_s / whole_s for user, weighted_s in self._weighted_s.items()}
        self._times_s, self._weighted_s = {}, {}
        return charges


# --- The gates of one kind that run, and the clients behind them: what the keepers of both kinds have in common.

_IDENTITY: Final = struct.Struct("<cI")  # how a gate's clients are told from others: a mark, the number of its start


class GateListener(Protocol):
    """Receives what the gates pass on. All calls come on the event loop."""

    def handle_frame(self, identity: bytes, data: bytes, user: int) -> bool:
        """Handles one frame of a client of `user`, a uid or the number of a key, and returns whether it was due.

        Those that release batches are due, and one for each receipt: no trainer reads without them. All others are
        questions.
        """
        ...

    def charge_user(self, user: int, took_s: float) -> float:
        """Charges a user for processor time, and returns for how many seconds its next frames must wait."""
        ...

    def adopt_lifeline(self, connection: socket.socket, secret: bytes) -> None:
        """Takes over a trainer's lifeline, which has sent its session's secret."""

    def on_client_unreachable(self, identity: bytes) -> None:
        """A client is gone or does not read, and loses what was sent to it."""

    def on_gate_ended(self, prefix: bytes) -> None:
        """All clients whose identities begin with `prefix` are gone."""


@dataclass(slots=True, eq=False)
class GateLink:
    """One run of a gate: its process, and the number that it has in its clients' identities."""

    number: int
    process: GateProcess
    charges: FrameCharges


class GateLinks:
    """The running gates of one kind. The identities of their clients begin with `mark`. Lives on the event loop."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark  # of one byte; the identities that a ROUTER makes begin with a zero
        self._links: dict[int, GateLink] = {}  # those that run, by number
        self._numbers = itertools.count(1)
        self.listener: GateListener | None = None

    def create_link(self, process: GateProcess, owner: int | None = None) -> GateLink:
        """Returns the link of a process that is about to be started, for one user or for several."""
        return GateLink(next(self._numbers), process, FrameCharges(owner))

    def list_pids(self) -> list[int]:
        """Returns the processes of the gates."""
        return [each.process.pid for each in self._links.values()]

    def kill_all(self) -> None:
        """Ends all gates."""
        for each in self._links.values():
            each.process.kill()

    async def run_gate(self, link: GateLink, role: Role, settings: Mapping[str, Any]) -> str:
        """Runs a gate until it ends, and returns how it did. Its clients are reported gone."""
        self._links[link.number] = link
        try:
            await link.process.start(role, settings)
            return await link.process.wait_until_ended()
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        finally:
            link.process.kill()
            del self._links[link.number]
            if self.listener is not None:
                self.listener.on_gate_ended(_IDENTITY.pack(self._mark, link.number))

    def is_behind_gate(self, identity: bytes) -> bool:
        """Whether a client is behind a gate of this kind."""
        return identity[:1] == self._mark

    def send_frame(self, identity: bytes, data: bytes) -> bool:
        """Sends to one client, and never waits. False when its gate is gone; a lost client is reported later."""
        link = self._links.get(_IDENTITY.unpack_from(identity)[1])
        return link is not None and link.process.send_frame(identity[_IDENTITY.size :], data)

    def handle_frame(self, link: GateLink, client: bytes, frame: bytes, user: int) -> None:
        """Passes a client's frame to the listener, and notes what it took."""
        if self.listener is None:
            return
        began_s = time.thread_time()
        is_due = self.listener.handle_frame(self.identify_client(link, client), frame, user)
        link.charges.add_frame(user, time.thread_time() - began_s, is_question=not is_due)

    def charge_users(self, link: GateLink, took_s: float) -> dict[int, float]:
        """Charges the users of a link for a turn of it, and returns for how many seconds each must wait."""
        listener, charges = self.listener, link.charges.take_charges(took_s)
        if listener is None:
            return {}
        return {user: listener.charge_user(user, charge_s) for user, charge_s in charges.items()}

    def identify_client(self, link: GateLink, client: bytes) -> bytes:
        """Returns what the daemon calls a client, which its gate calls `client`."""
        return _IDENTITY.pack(self._mark, link.number) + client


def compute_restart_pause(pause_s: float) -> float:
    """Returns the pause after one more end of a gate, whose last pause was `pause_s`: 0 if there was none."""
    return min(GATE_RESTART_MAX_S, max(GATE_RESTART_S, 2 * pause_s))
