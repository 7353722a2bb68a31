"""The processes at the daemon's border, as the daemon sees them. No client of another user or host reaches it directly.

They are the door at the public path, the gate of each user behind it, and the gate of each tcp:// address. The keepers
start them, start them again after their end, and pass their frames to the dispatcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from streamd.core import log
from streamd.core.leaky_bucket import TimeShares
from streamd.core.text import FIRST_KEY_USER, shorten_text
from streamd.daemon.batch_sender import SpawnTask
from streamd.daemon.sessions import OWN_USER
from streamd.errors import ConfigError, ProtocolError
from streamd.ipc.endpoint import own_socket_path, served_socket_path, split_host_port
from streamd.ipc.key_files import list_key_files, read_key_pair
from streamd.ipc.record_link import KEY_PAUSE, KEY_USER, USER, LinkCallbacks, RecordKind, RecordLink, split_client_frame
from streamd.ipc.router import FrameSender
from streamd.limits import (
    GATE_RESTART_MAX_S,
    GATE_RESTART_S,
    GATE_SOUND_S,
    GATE_START_S,
    GATE_UNREAD_S,
    LOOP_BURST_S,
    MAX_GATES,
    MAX_KEY_PAUSE_S,
    MAX_REFUSAL_CHARS,
    NETWORK_LOOP_SHARE,
    QUESTION_WEIGHT,
    SECRET_BYTES,
)

# --- One helper process at the daemon's border, as the daemon sees it: the door, or the gate of one user.

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
            self._watch_unread_frames(is_full=False)
            if self._descriptors is not None:
                asyncio.get_running_loop().remove_reader(self._descriptors)
                self._descriptors.close()
                self._descriptors = None
            if self._link is not None:
                self._link.close()
                self._link = None
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        last = words.decode(errors="replace").strip().splitlines()[-1:]
        return shorten_text(f"{ending}{': ' + last[0] if last else ''}", MAX_REFUSAL_CHARS)

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
    """The running gates of one kind: what both keepers have in common. Lives on the event loop.

    The identities of the clients behind these gates begin with `mark`. All others are clients of `inner`.
    """

    def __init__(self, mark: bytes, inner: FrameSender) -> None:
        self._mark = mark  # of one byte; the identities that a ROUTER makes begin with a zero
        self._inner = inner
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

    async def run_link(self, link: GateLink, role: Role, settings: Mapping[str, Any]) -> str:
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

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when its gate is gone; a lost client is reported later.

        Clients behind a gate get no pixels by socket.
        """
        if identity[:1] != self._mark:
            return self._inner.send_frame(identity, data, pixels)
        if pixels is not None:
            return False
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


# --- The door and the gates of this host's users.
#
# The door is started when the first client knocks at the path, and the gate of a user when the door asks for it. Each
# is started again when it is needed after its end. A user that makes its gate end again and again waits longer each
# time; other users do not notice.

_USER_MARK: Final = b"g"  # of the clients' identities
_NAME_BYTES: Final = 16  # of the secret name of a gate's folder


@dataclass(slots=True)
class _UserGate:
    """The gate of a user, and when it may be started again after its end."""

    user: int
    link: GateLink | None = None
    path: Path | None = None
    is_ready: bool = False
    pause_s: float = 0.0
    next_start_s: float = 0.0


class GateKeeper(GateLinks):
    """The door at the public path, and the gates behind it. Sends frames to all clients, also to those without a gate.

    `router` serves the clients of the daemon's own user (`own_user`, a uid) in `folder`, the gate folder. `most_gates`
    is how many users can have a gate at a time. Lives on the event loop.
    """

    def __init__(
        self,
        router: FrameSender,
        folder: Path,
        *,
        own_user: int = OWN_USER,
        most_gates: int = MAX_GATES,
    ) -> None:
        super().__init__(_USER_MARK, router)
        self._folder = folder
        self._own_user = own_user
        self._most_gates = most_gates
        self._gates: dict[int, _UserGate] = {}  # by user
        self._door: GateProcess | None = None
        self._knocks: socket.socket | None = None
        self._spawn: SpawnTask | None = None

    def start(self, knocks: socket.socket, listener: GateListener, spawn: SpawnTask) -> None:
        """Waits for the first client at the listening socket `knocks`, and starts the door then."""
        self._knocks, self.listener, self._spawn = knocks, listener, spawn
        self._watch_for_knock()

    def listen_anew(self, knocks: socket.socket) -> None:
        """Waits for clients at another socket, in place of one that no client finds any more."""
        before, self._knocks = self._knocks, knocks
        if before is not None:
            asyncio.get_running_loop().remove_reader(before)
            before.close()
        if self._door is not None:
            self._door.kill()  # it listens at the old one; the next is started for the next client
        else:
            self._watch_for_knock()

    def end_unreachable_gates(self) -> list[Path]:
        """Ends the gates whose sockets are gone, and returns these. Their clients come to the next ones."""
        gone = []
        for gate in self._gates.values():
            if gate.is_ready and gate.link is not None and gate.path is not None and not os.path.lexists(gate.path):
                gate.is_ready = False
                gate.link.process.kill()
                gone.append(gate.path)
        return gone

    def list_socket_folders(self) -> list[Path]:
        """Returns the folders of the gates' sockets."""
        return [each.path.parent for each in self._gates.values() if each.is_ready and each.path]

    def close(self) -> None:
        """Stops waiting for clients, and ends the door and all gates."""
        self._spawn = None  # what the door has asked for and nobody has read yet starts no gate any more
        if self._knocks is not None:
            asyncio.get_running_loop().remove_reader(self._knocks)
            self._knocks.close()
            self._knocks = None
        if self._door is not None:
            self._door.kill()
        self.kill_all()

    def list_pids(self) -> list[int]:
        """Returns the processes of the door and the gates."""
        return [*([self._door.pid] if self._door is not None else []), *super().list_pids()]

    # --- the door

    def _watch_for_knock(self) -> None:
        # The socket is only watched, never read: the door accepts the clients that wait there.
        if self._knocks is not None:
            asyncio.get_running_loop().add_reader(self._knocks, self._start_door)

    def _start_door(self) -> None:
        if self._knocks is not None and self._spawn is not None:
            asyncio.get_running_loop().remove_reader(self._knocks)
            self._spawn(self._run_door(self._knocks))

    async def _run_door(self, knocks: socket.socket) -> None:
        """Runs the door until it ends, and then waits for the next client."""
        self._door = door = GateProcess(self._handle_door_record)
        try:
            await door.start(
                "door", {"own_user": self._own_user, "own_path": str(own_socket_path(self._folder))}, knocks
            )
            for gate in self._gates.values():
                self._refer_user(gate)
            ending = await door.wait_until_ended()
        except OSError as error:
            ending = f"it cannot be started: {error.strerror}"
        finally:
            door.kill()
            self._door = None
        if self._knocks is not None:
            log.warning("gate.ended", f"the door has ended ({ending}); it is started again for the next client")
            await asyncio.sleep(GATE_RESTART_S)
            self._watch_for_knock()

    def _handle_door_record(self, kind: RecordKind, body: bytes) -> None:
        """Starts the gate of the user that the door asks for, unless it runs, or too many others do."""
        if kind is not RecordKind.WANTED:
            return
        user = USER.unpack(body)[0]
        gate = self._gates.get(user)
        if gate is None:
            # A user whose gate has ended is forgotten to make room.
            if len(self._gates) >= self._most_gates:
                idle = next((each for each in self._gates.values() if each.link is None), None)
                if idle is None:
                    log.warning(
                        "session.refused",
                        f"no gate for user {user}: {self._most_gates} users have one, which is the limit",
                    )
                    self._refer_user(_UserGate(user))
                    return
                del self._gates[idle.user]
            gate = self._gates[user] = _UserGate(user)
        if gate.link is None and time.monotonic() >= gate.next_start_s and self._spawn is not None:
            gate.link = link = self.create_link(
                GateProcess(
                    lambda kind, body: self._handle_gate_record(gate, link, kind, body),
                    lambda connection, secret: self._adopt_lifeline(gate, connection, secret),
                    lambda took_s: max(self.charge_users(link, took_s).values(), default=0.0),
                ),
                gate.user,
            )
            self._spawn(self._run_gate(gate, link))
        elif gate.link is None or gate.is_ready:
            self._refer_user(gate)

    def _refer_user(self, gate: _UserGate) -> None:
        """Tells the door where to send a user's clients; without a path, to send them away."""
        path = os.fsencode(gate.path) if gate.is_ready and gate.path is not None else b""
        if self._door is not None:
            self._door.send_record(RecordKind.REFERRAL, USER.pack(gate.user) + path)

    # --- gates

    async def _run_gate(self, gate: _UserGate, link: GateLink) -> None:
        """Runs the gate of a user until it ends."""
        began_s = time.monotonic()
        folder = self._folder / secrets.token_urlsafe(_NAME_BYTES)
        gate.path = served_socket_path(folder)
        late = asyncio.get_running_loop().call_later(GATE_START_S, self._end_unready_gate, gate, link)
        try:
            ending = await self.run_link(link, "user", {"user": gate.user, "folder": str(folder)})
        finally:
            late.cancel()
            gate.link, gate.is_ready = None, False
        ended_s = time.monotonic()
        is_sound = ended_s - began_s >= GATE_SOUND_S or ending == "exit status 0"
        gate.pause_s = 0.0 if is_sound else compute_restart_pause(gate.pause_s)
        gate.next_start_s = ended_s + gate.pause_s
        self._refer_user(gate)
        note = log.info if is_sound else log.warning
        note("gate.ended", f"the gate of user {gate.user} has ended: {ending}", user=gate.user, pause_s=gate.pause_s)

    @staticmethod
    def _end_unready_gate(gate: _UserGate, link: GateLink) -> None:
        if gate.link is link and not gate.is_ready:
            link.process.kill()

    def _handle_gate_record(self, gate: _UserGate, link: GateLink, kind: RecordKind, body: bytes) -> None:
        match kind:
            case RecordKind.FRAME:
                client, frame = split_client_frame(body)
                self.handle_frame(link, client, frame, gate.user)
            case RecordKind.UNREACHABLE if self.listener is not None:
                self.listener.on_client_unreachable(self.identify_client(link, body))
            case RecordKind.READY:
                gate.is_ready = True
                self._refer_user(gate)
            case RecordKind.LOG:
                log.warning("session.refused", f"the gate of user {gate.user}: {json.loads(body)}", user=gate.user)
            case _:
                pass

    def _adopt_lifeline(self, gate: _UserGate, connection: socket.socket, secret: bytes) -> None:
        if self.listener is not None and gate.link is not None:
            self.listener.adopt_lifeline(connection, secret)
        else:
            connection.close()


# --- Starts the gates for other hosts, one for each tcp:// address, and passes their frames to the dispatcher.
#
# A gate that has ended is started again at once, and after a pause if it ends again and again. Clients of this host do
# not notice. The daemon itself listens to no network.
#
# Each key is a user with a share of the event loop's time, and its questions are weighed as those of local users are.
# All keys come over one link, so the gate keeps back the frames of a key that is over its share. The link itself is
# paused only while all keys together are over theirs.


_CREDENTIAL: Final = "streamd.key_secret"  # the name under which a service manager hands the secret file over
_NETWORK_MARK: Final = b"n"  # of the clients' identities
_ALL_KEYS: Final = OWN_USER + 1  # whom the links' time is charged to, besides the keys: all clients together


@dataclass(frozen=True, slots=True)
class NetworkKeys:
    """Where the keys are: the daemon's secret file, and the folder of the clients' public ones."""

    secret: Path
    clients: Path


def find_network_keys(secret: Path | None, clients: Path) -> NetworkKeys:
    """Returns where the keys are: `secret` is by default the credential of that name. Raises ConfigError."""
    if secret is None:
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        if folder is None:
            raise ConfigError(
                "curve.secret: is missing, and there is no credential: name the file of the secret key that `streamd "
                f"keygen` has made, or give the service LoadCredential={_CREDENTIAL}:FILE"
            )
        secret = Path(folder) / _CREDENTIAL
    read_key_pair(secret, "curve.secret")
    try:
        list_key_files(clients)
    except OSError as error:
        raise ConfigError(
            f"curve.clients: cannot read {clients}: {error.strerror}; make a folder, and put the .key file of each "
            "client into it"
        ) from error
    return NetworkKeys(secret, clients)


def read_key_user(client: bytes) -> int:
    """Returns the number of a client's key from the client's identity. Raises ProtocolError if no key has it."""
    # A gate that a client has taken over could name a local user, or the daemon's own, which is trusted.
    if len(client) <= KEY_USER.size or (user := int(KEY_USER.unpack_from(client)[0])) < FIRST_KEY_USER:
        raise ProtocolError("a frame of a client without a key")
    return user


@dataclass(slots=True, eq=False)
class _NetworkGate:
    """The gate of one address, over all its starts: all have the port that the first one got."""

    address: str
    port: int
    started: asyncio.Future[None]
    pause_s: float = 0.0
    failure: str = ""


class NetworkGateKeeper(GateLinks):
    """The gates of `addresses`, tcp:// endpoints. Sends frames to all clients; `inner` to those of this host.

    `descriptor_path` is the daemon's own descriptor socket. Lives on the event loop.
    """

    def __init__(self, inner: FrameSender, addresses: Sequence[str], keys: NetworkKeys, descriptor_path: str) -> None:
        super().__init__(_NETWORK_MARK, inner)
        self._keys = keys
        self._descriptor_path = descriptor_path
        loop = asyncio.get_running_loop()
        self._gates = [_NetworkGate(each, split_host_port(each)[1], loop.create_future()) for each in addresses]
        self._shares = TimeShares(OWN_USER, NETWORK_LOOP_SHARE, LOOP_BURST_S)  # of all keys together

    @property
    def addresses(self) -> list[str]:
        """The endpoints that are served, with the ports that were picked."""
        return [f"{each.address.rpartition(':')[0]}:{each.port}" for each in self._gates]

    async def start(self, listener: GateListener, spawn: SpawnTask) -> None:
        """Starts all gates, and returns when clients can connect. Raises ConfigError when one cannot listen."""
        self.listener = listener
        for gate in self._gates:
            spawn(self._keep_gate(gate))
        try:
            async with asyncio.timeout(GATE_START_S):
                await asyncio.gather(*(gate.started for gate in self._gates))
        except TimeoutError as error:
            raise ConfigError(f"listen: no gate for other hosts within {GATE_START_S:g} s; see the log") from error

    def close(self) -> None:
        """Ends all gates."""
        self.kill_all()

    async def _keep_gate(self, gate: _NetworkGate) -> None:
        """Runs the gate of an address, and starts it again whenever it ends, until the daemon does."""
        while True:
            began_s = time.monotonic()
            ending = await self._run_gate(gate)
            if not gate.started.done():
                gate.started.set_exception(
                    ConfigError(f"listen: cannot serve {gate.address}: {gate.failure or ending}")
                )
                return
            is_sound = time.monotonic() - began_s >= GATE_SOUND_S
            gate.pause_s = GATE_RESTART_S if is_sound else compute_restart_pause(gate.pause_s)
            log.warning(
                "gate.ended",
                f"the gate at {gate.address} has ended: {gate.failure or ending}; its clients come to the next one",
                pause_s=gate.pause_s,
            )
            await asyncio.sleep(gate.pause_s)

    async def _run_gate(self, gate: _NetworkGate) -> str:
        """Runs the gate of an address until it ends, and returns how it did."""
        link = self.create_link(
            GateProcess(
                lambda kind, body: self._handle_record(gate, link, kind, body),
                measure_pause_s=lambda took_s: self._charge_turn(link, took_s),
            )
        )
        gate.failure = ""
        settings = {
            "host": split_host_port(gate.address)[0],
            "port": gate.port,
            "secret": str(self._keys.secret),
            "clients": str(self._keys.clients),
            "descriptors": self._descriptor_path,
        }
        return await self.run_link(link, "network", settings)

    def _handle_record(self, gate: _NetworkGate, link: GateLink, kind: RecordKind, body: bytes) -> None:
        match kind:
            case RecordKind.FRAME:
                client, frame = split_client_frame(body)
                self.handle_frame(link, client, frame, read_key_user(client))
            case RecordKind.READY:
                if not body:
                    raise ProtocolError("a gate for other hosts is ready, and does not say at which port")
                facts = json.loads(body)
                gate.port = int(facts["port"])
                if gate.started.done():
                    return
                if not facts["has_bbr"]:
                    log.warning(
                        "gate.no_bbr",
                        f"{gate.address}: this kernel has no BBR, so a link that loses packets will be slow: run  "
                        "modprobe tcp_bbr  and restart",
                    )
                log.info("gate.ready", f"serving other hosts at {gate.address.rpartition(':')[0]}:{gate.port}")
                gate.started.set_result(None)
            case RecordKind.FAILED:
                gate.failure = json.loads(body)
                link.process.kill()
            case RecordKind.LOG:
                log.warning("session.refused", f"the gate at {gate.address}: {json.loads(body)}")
            case _:
                pass

    def _charge_turn(self, link: GateLink, took_s: float) -> float:
        """Charges the keys for a turn of a link, pauses those over their share, and returns the link's own pause."""
        for user, pause_s in self.charge_users(link, took_s).items():
            if pause_s > 0:
                pause_ms = round(min(pause_s, MAX_KEY_PAUSE_S) * 1000)
                link.process.send_record(RecordKind.PAUSE, KEY_PAUSE.pack(user, pause_ms))
        return self._shares.charge_and_get_pause_s(_ALL_KEYS, took_s, time.monotonic())
