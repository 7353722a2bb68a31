"""One helper process at the daemon's border, as the daemon sees it: the door, or the gate of one user."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from streamd.core.text import shorten_text
from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink
from streamd.limits import (
    GATE_RESTART_MAX_S,
    GATE_RESTART_S,
    GATE_UNREAD_S,
    MAX_REFUSAL_CHARS,
    QUESTION_WEIGHT,
    SECRET_BYTES,
)

_STDERR_BYTES: Final = 4096  # the last words of a process, which are logged
Role = Literal["door", "user", "network"]
_SEND_BUFFER_BYTES: Final = 1 << 20


class GateProcess:
    """A running door or gate: its process, its link, and the socket pair on which it passes descriptors.

    `on_record` handles its records, `on_lifeline(connection, secret)` a trainer's lifeline, which the callee owns.
    Lives on the event loop.
    """

    def __init__(
        self,
        on_record: Callable[[RecordKind, bytes], None],
        on_lifeline: Callable[[socket.socket, bytes], None] = lambda connection, _secret: connection.close(),
        measure_pause_s: Callable[[float], float] = lambda _took_s: 0.0,
    ) -> None:
        self._callbacks = LinkCallbacks(on_record, self.kill, measure_pause_s, self._watch_unread_frames)
        self._on_lifeline = on_lifeline
        self._process: asyncio.subprocess.Process | None = None
        self._link: RecordLink | None = None
        self._descriptors: socket.socket | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self, role: Role, settings: Mapping[str, Any], inherited: socket.socket | None = None) -> None:
        """Starts `python -m streamd.gate` with these settings and a copy of `inherited`. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors, their_descriptors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed = [theirs, their_descriptors, *([inherited] if inherited is not None else [])]
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.gate", role, *(str(each.fileno()) for each in passed),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=[each.fileno() for each in passed],
                process_group=0,  # out of reach of the terminal's Ctrl-C
                limit=_STDERR_BYTES,
            )  # fmt: skip
        except BaseException:
            ours.close()
            descriptors.close()
            raise
        finally:
            theirs.close()
            their_descriptors.close()
        for end in (ours, descriptors):
            end.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._descriptors = descriptors
        self._link = await RecordLink.open(ours, self._callbacks, is_of_gate=True)
        asyncio.get_running_loop().add_reader(descriptors, self._receive_lifeline)
        # A helper that ends before it has read this ends its link too, which kill() notices.
        self._link.send_record(RecordKind.SETTINGS, json.dumps(settings).encode())

    def send_record(self, kind: RecordKind, body: bytes) -> None:
        if self._link is not None:
            self._link.send_record(kind, body)

    def send_frame(self, identity: bytes, frame: bytes) -> bool:
        """Sends a frame for one of its clients, or queues it. False if the process is gone."""
        link = self._link
        if link is None or link.is_closed:
            return False
        link.send_frame(identity, frame)
        return True

    def _watch_unread_frames(self, is_full: bool) -> None:
        """Ends a process that has taken nothing for GATE_UNREAD_S while frames wait for it."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        if is_full and self._link is not None:
            self._unread_timer = asyncio.get_running_loop().call_later(
                GATE_UNREAD_S, self._check_taken_bytes, self._link, self._link.taken_bytes
            )

    def _check_taken_bytes(self, link: RecordLink, taken_bytes: int) -> None:
        if link.taken_bytes == taken_bytes:
            self.kill()
        else:
            self._watch_unread_frames(is_full=True)

    def kill(self) -> None:
        """Ends the process. `wait_until_ended` returns soon after."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait_until_ended(self) -> str:
        """Waits for the end of the process, and returns how it ended with its last words. Closes the links."""
        process = self._process
        if process is None or process.stderr is None:
            return "it did not start"
        try:
            words = b""
            while said := await process.stderr.read(_STDERR_BYTES):
                words = (words + said)[-_STDERR_BYTES:]
            status = await process.wait()
        finally:
            self.kill()
            self._close_links()
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        last = words.decode(errors="replace").strip().splitlines()[-1:]
        return shorten_text(f"{ending}{': ' + last[0] if last else ''}", MAX_REFUSAL_CHARS)

    def _close_links(self) -> None:
        self._watch_unread_frames(is_full=False)
        if self._descriptors is not None:
            asyncio.get_running_loop().remove_reader(self._descriptors)
            self._descriptors.close()
            self._descriptors = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def _receive_lifeline(self) -> None:
        assert self._descriptors is not None  # noqa: S101 - only its own reader calls this
        try:
            secret, descriptors, _, _ = socket.recv_fds(self._descriptors, SECRET_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            secret, descriptors = b"", []
        if descriptors:
            self._on_lifeline(socket.socket(fileno=descriptors[0]), secret)
        elif not secret:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._descriptors)


# --- The gates of one kind that run, and the clients behind them: what the keepers of both kinds have in common.


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
