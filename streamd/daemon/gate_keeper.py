"""The processes at the daemon's border, as the daemon sees them. No client of another user or host reaches it directly.

They are the door at the public path, the gate of each user behind it, and the gate of each tcp:// address. The keeper
starts them, starts them again after their end, and passes their frames to the dispatcher.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from streamd.core import log
from streamd.core.leaky_bucket import TimeShares
from streamd.core.text import FIRST_KEY_USER, shorten_text
from streamd.daemon.batch_sender import SpawnTask
from streamd.daemon.sessions import OWN_USER
from streamd.errors import ConfigError, ProtocolError
from streamd.ipc.child import kill_child, open_child_link, start_child
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

# --- One process at the daemon's border, as the daemon sees it: the door, or a gate.

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

    async def start(self, role: Role, settings: Mapping[str, Any], inherited: socket.socket | None = None) -> None:
        """Starts `python -m streamd.gate` with these settings and a copy of `inherited`. Raises OSError."""
        with open_child_link(socket.SOCK_STREAM) as (ours, theirs), open_child_link() as (descriptors, given):
            passed = [each.fileno() for each in (theirs, given, inherited) if each is not None]
            self._process = await start_child(
                "streamd.gate",
                role,
                *passed,
                passed=passed,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                buffer_bytes=_STDERR_BYTES,
            )
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

    def _watch_unread_frames(self, is_full: bool, taken_bytes: int | None = None) -> None:
        """Ends a process that has taken nothing for GATE_UNREAD_S, `taken_bytes` in all, while frames wait for it."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        if is_full and self._link is not None:
            if self._link.taken_bytes == taken_bytes:
                self.kill()
                return
            self._unread_timer = asyncio.get_running_loop().call_later(
                GATE_UNREAD_S, self._watch_unread_frames, is_full, self._link.taken_bytes
            )

    def kill(self) -> None:
        """Ends the process. `wait_until_ended` returns soon after."""
        if self._process is not None and self._process.returncode is None:
            kill_child(self._process)

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


# --- The keys of clients on other hosts.

_CREDENTIAL: Final = "streamd.key_secret"  # the name under which a service manager hands the secret file over


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


# --- All gates, those of this host's users and those for other hosts, and the door.
#
# A gate is started, is ready, passes records on, ends, and pauses. The gate of a user is started when the door asks for
# it, and the door when the first client knocks at the path. The gate of an address runs from the daemon's start, and is
# started again by itself. Whoever makes a gate end again and again waits longer each time; others do not notice. The
# daemon itself listens to no network.
#
# Each key of a client on another host is a user with a share of the event loop's time, and its questions are weighed as
# those of local users are. All keys come over one link, so the gate keeps back the frames of a key that is over its
# share. The link itself is paused only while all keys together are over theirs.

_MARK: Final = b"g"  # the identities that a ROUTER makes begin with a zero
_IDENTITY: Final = struct.Struct("<cI")  # how a gate's clients are told from others: _MARK, the number of its start
_NAME_BYTES: Final = 16  # of the secret name of a user's gate's folder
_ALL_KEYS: Final = OWN_USER + 1  # whom the links' time is charged to, besides the keys: all clients together


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
class Gate:
    """A gate over all its starts: that of a user, or that of an address, which serves the users of many keys.

    `settings` are what its process is told. That of a user has a new `path` at each start; that of an address keeps the
    port that the first one got, and `started` is done when its first start has succeeded or failed.
    """

    name: str  # in the log
    user: int | None
    address: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    started: asyncio.Future[None] | None = None
    path: Path | None = None
    # Of the present start: its number, which its clients' identities have, its process, and what it has said.
    number: int = 0
    process: GateProcess | None = None
    charges: FrameCharges = field(default_factory=FrameCharges)
    is_ready: bool = False
    failure: str = ""
    # The pause after its last end.
    pause_s: float = 0.0
    next_start_s: float = 0.0

    def identify_client(self, client: bytes) -> bytes:
        """Returns what the daemon calls a client, which this gate calls `client`."""
        return _IDENTITY.pack(_MARK, self.number) + client


class GateKeeper:
    """The door at the public path, and all gates. Sends frames to all clients, also to those without a gate.

    `router` serves the clients of the daemon's own user (`own_user`, a uid). `folder` is the gate folder; None where
    there is no door. `most_gates` is how many users can have a gate at a time. Lives on the event loop.
    """

    def __init__(
        self, router: FrameSender, folder: Path | None, *, own_user: int = OWN_USER, most_gates: int = MAX_GATES
    ) -> None:
        self._router = router
        self._folder = folder
        self._own_user = own_user
        self._most_gates = most_gates
        self._listener: GateListener | None = None
        self._spawn: SpawnTask | None = None  # None before the start, and after the end
        self._numbers = itertools.count(1)
        self._running: dict[int, Gate] = {}  # by number
        self._gates: dict[int, Gate] = {}  # those of users
        self._door: GateProcess | None = None
        self._knocks: socket.socket | None = None
        self._shares = TimeShares(OWN_USER, NETWORK_LOOP_SHARE, LOOP_BURST_S)  # of all keys together

    def start(self, listener: GateListener, spawn: SpawnTask, knocks: socket.socket | None = None) -> None:
        """Waits for the first client at the listening socket `knocks`, if there is one, and starts the door then."""
        self._listener, self._spawn, self._knocks = listener, spawn, knocks
        self._watch_for_knock()

    async def serve_addresses(self, addresses: Sequence[str], keys: NetworkKeys, descriptor_path: str) -> None:
        """Starts a gate for each tcp:// address, and returns when clients can connect.

        `descriptor_path` is the daemon's own descriptor socket. Raises ConfigError when one cannot listen.
        """
        starts = []
        for address in addresses:
            host, port = split_host_port(address)
            settings = {
                "host": host,
                "port": port,
                "secret": str(keys.secret),
                "clients": str(keys.clients),
                "descriptors": descriptor_path,
            }
            started = asyncio.get_running_loop().create_future()
            starts.append(started)
            self._start_gate(Gate(f"the gate at {address}", None, address, settings, started))
        try:
            async with asyncio.timeout(GATE_START_S):
                await asyncio.gather(*starts)
        except TimeoutError as error:
            raise ConfigError(f"listen: no gate for other hosts within {GATE_START_S:g} s; see the log") from error

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
            if gate.is_ready and gate.process is not None and gate.path is not None and not os.path.lexists(gate.path):
                gate.is_ready = False
                gate.process.kill()
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
        for each in (self._door, *(gate.process for gate in self._running.values())):
            if each is not None:
                each.kill()

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when its gate is gone; a lost client is reported later.

        Clients behind a gate get no pixels by socket.
        """
        if identity[:1] != _MARK:
            return self._router.send_frame(identity, data, pixels)
        if pixels is not None:
            return False
        gate = self._running.get(_IDENTITY.unpack_from(identity)[1])
        return (
            gate is not None and gate.process is not None and gate.process.send_frame(identity[_IDENTITY.size :], data)
        )

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
        assert self._folder is not None  # noqa: S101 - there is none without a gate folder
        self._door = door = GateProcess(self._handle_door_record)
        settings = {"own_user": self._own_user, "own_path": str(own_socket_path(self._folder))}
        try:
            await door.start("door", settings, knocks)
            for user in self._gates:
                self._refer_user(user)
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
                idle = next((each for each, other in self._gates.items() if other.process is None), None)
                if idle is None:
                    log.warning(
                        "session.refused",
                        f"no gate for user {user}: {self._most_gates} users have one, which is the limit",
                    )
                    self._refer_user(user)
                    return
                del self._gates[idle]
            gate = self._gates[user] = Gate(f"the gate of user {user}", user)
        if gate.process is None and time.monotonic() >= gate.next_start_s and self._spawn is not None:
            self._start_gate(gate)
        elif gate.process is None or gate.is_ready:
            self._refer_user(user)

    def _refer_user(self, user: int) -> None:
        """Tells the door where to send a user's clients; without a path, to send them away."""
        gate = self._gates.get(user)
        path = os.fsencode(gate.path) if gate is not None and gate.is_ready and gate.path is not None else b""
        if self._door is not None:
            self._door.send_record(RecordKind.REFERRAL, USER.pack(user) + path)

    # --- gates

    def _start_gate(self, gate: Gate) -> None:
        """Starts a gate that is not running, unless the daemon has closed its endpoint."""
        if self._spawn is None:
            return
        gate.number, gate.charges, gate.failure = next(self._numbers), FrameCharges(gate.user), ""
        gate.process = GateProcess(
            partial(self._handle_gate_record, gate),
            partial(self._adopt_lifeline, gate),
            partial(self._charge_turn, gate),
        )
        self._spawn(self._run_gate(gate, gate.process))

    async def _run_gate(self, gate: Gate, process: GateProcess) -> None:
        """Runs a gate until it ends, reports its clients gone, and starts that of an address again after a pause."""
        began_s = time.monotonic()
        self._running[gate.number] = gate
        if gate.user is not None:
            assert self._folder is not None  # noqa: S101 - the door has asked for it
            folder = self._folder / secrets.token_urlsafe(_NAME_BYTES)
            gate.path, gate.settings = served_socket_path(folder), {"user": gate.user, "folder": str(folder)}
        late = asyncio.get_running_loop().call_later(GATE_START_S, self._end_unready_gate, gate)
        try:
            await process.start("network" if gate.user is None else "user", gate.settings)
            ending = await process.wait_until_ended()
        except OSError as error:
            ending = f"it cannot be started: {error.strerror}"
        finally:
            late.cancel()
            process.kill()
            del self._running[gate.number]
            gate.process, gate.is_ready = None, False
            if self._listener is not None:
                self._listener.on_gate_ended(gate.identify_client(b""))
        ended_s = time.monotonic()
        is_sound = ended_s - began_s >= GATE_SOUND_S
        # The gate of a user, which ends by itself when it is idle: the next client may start it again.
        if gate.user is not None:
            is_sound = is_sound or ending == "exit status 0"
            gate.pause_s = 0.0 if is_sound else compute_restart_pause(gate.pause_s)
            gate.next_start_s = ended_s + gate.pause_s
            self._refer_user(gate.user)
            note = log.info if is_sound else log.warning
            note("gate.ended", f"{gate.name} has ended: {ending}", user=gate.user, pause_s=gate.pause_s)
        # The first start of that of an address has failed, and with it the start of the daemon.
        elif gate.started is not None and not gate.started.done():
            reason = gate.failure or ending
            gate.started.set_exception(ConfigError(f"listen: cannot serve {gate.address}: {reason}"))
        else:
            gate.pause_s = GATE_RESTART_S if is_sound else compute_restart_pause(gate.pause_s)
            log.warning(
                "gate.ended",
                f"{gate.name} has ended: {gate.failure or ending}; its clients come to the next one",
                pause_s=gate.pause_s,
            )
            await asyncio.sleep(gate.pause_s)
            self._start_gate(gate)

    @staticmethod
    def _end_unready_gate(gate: Gate) -> None:
        if gate.process is not None and not gate.is_ready:
            gate.process.kill()

    def _handle_gate_record(self, gate: Gate, kind: RecordKind, body: bytes) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101 - no gate runs before the start
        match kind:
            case RecordKind.FRAME:
                client, frame = split_client_frame(body)
                user = read_key_user(client) if gate.user is None else gate.user
                began_s = time.thread_time()
                is_due = listener.handle_frame(gate.identify_client(client), frame, user)
                gate.charges.add_frame(user, time.thread_time() - began_s, is_question=not is_due)
            case RecordKind.UNREACHABLE if gate.user is not None:
                listener.on_client_unreachable(gate.identify_client(body))
            case RecordKind.READY if gate.user is not None:
                gate.is_ready = True
                self._refer_user(gate.user)
            # An address is served, at the port that is noted for later starts. The first time is logged.
            case RecordKind.READY:
                gate.is_ready = True
                if not body:
                    raise ProtocolError("a gate for other hosts is ready, and does not say at which port")
                facts = json.loads(body)
                gate.settings["port"] = int(facts["port"])
                if gate.started is None or gate.started.done():
                    return
                if not facts["has_bbr"]:
                    log.warning(
                        "gate.no_bbr",
                        f"{gate.address}: this kernel has no BBR, so a link that loses packets will be slow: run  "
                        "modprobe tcp_bbr  and restart",
                    )
                host = gate.address.rpartition(":")[0]
                log.info("gate.ready", f"serving other hosts at {host}:{gate.settings['port']}")
                gate.started.set_result(None)
            case RecordKind.FAILED if gate.user is None and gate.process is not None:
                gate.failure = json.loads(body)
                gate.process.kill()
            case RecordKind.LOG:
                fields = {} if gate.user is None else {"user": gate.user}
                log.warning("session.refused", f"{gate.name}: {json.loads(body)}", **fields)
            case _:
                pass

    def _adopt_lifeline(self, gate: Gate, connection: socket.socket, secret: bytes) -> None:
        # No sound gate for other hosts has any.
        if self._listener is not None and gate.user is not None:
            self._listener.adopt_lifeline(connection, secret)
        else:
            connection.close()

    def _charge_turn(self, gate: Gate, took_s: float) -> float:
        """Charges the users of a gate for a turn of its link, and returns for how many seconds the link must wait."""
        listener, process = self._listener, gate.process
        if listener is None or process is None:
            return 0.0
        charges_s = gate.charges.take_charges(took_s)
        pauses_s = {user: listener.charge_user(user, charge_s) for user, charge_s in charges_s.items()}
        if gate.user is not None:
            return max(pauses_s.values(), default=0.0)
        for user, pause_s in pauses_s.items():
            if pause_s > 0:
                pause_ms = round(min(pause_s, MAX_KEY_PAUSE_S) * 1000)
                process.send_record(RecordKind.PAUSE, KEY_PAUSE.pack(user, pause_ms))
        return self._shares.charge(_ALL_KEYS, took_s, time.monotonic())


def compute_restart_pause(pause_s: float) -> float:
    """Returns the pause after one more end of a gate, whose last pause was `pause_s`: 0 if there was none."""
    return min(GATE_RESTART_MAX_S, max(GATE_RESTART_S, 2 * pause_s))
