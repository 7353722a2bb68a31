"""Starts the door and the gates, and passes their frames to the dispatcher. No client reaches the daemon by itself.

The door is started when the first client knocks at the path, and the gate of a user when the door asks for it. Each is
started again when it is needed after its end. A user that makes its gate end again and again waits longer each time;
other users do not notice.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.daemon.batch_sender import SpawnTask
from streamd.daemon.gate_process import GateLink, GateLinks, GateListener, GateProcess, compute_restart_pause
from streamd.daemon.sessions import OWN_USER
from streamd.ipc.endpoint import own_socket_path, served_socket_path
from streamd.ipc.record_link import USER, RecordKind, split_client_frame
from streamd.ipc.router import FrameSender
from streamd.limits import GATE_RESTART_S, GATE_SOUND_S, GATE_START_S, MAX_GATES

_MARK: Final = b"g"  # of the clients' identities
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


class GateKeeper:
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
        self._router = router
        self._folder = folder
        self._own_user = own_user
        self._most_gates = most_gates
        self._gates: dict[int, _UserGate] = {}  # by user
        self._links = GateLinks(_MARK)
        self._door: GateProcess | None = None
        self._knocks: socket.socket | None = None
        self._spawn: SpawnTask | None = None

    def start(self, knocks: socket.socket, listener: GateListener, spawn: SpawnTask) -> None:
        """Waits for the first client at the listening socket `knocks`, and starts the door then."""
        self._knocks, self._links.listener, self._spawn = knocks, listener, spawn
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
        if self._knocks is not None:
            asyncio.get_running_loop().remove_reader(self._knocks)
            self._knocks.close()
            self._knocks = None
        if self._door is not None:
            self._door.kill()
        self._links.kill_all()

    def list_pids(self) -> list[int]:
        """Returns the processes of the door and the gates."""
        return [*([self._door.pid] if self._door is not None else []), *self._links.list_pids()]

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when its gate is gone; a client that is gone is reported later.

        Clients behind a gate get no pixels by socket.
        """
        if not self._links.is_behind_gate(identity):
            return self._router.send_frame(identity, data, pixels)
        return pixels is None and self._links.send_frame(identity, data)

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
        if kind is RecordKind.WANTED:
            self._open_gate(USER.unpack(body)[0])

    def _refer_user(self, gate: _UserGate) -> None:
        """Tells the door where to send a user's clients; without a path, to send them away."""
        path = os.fsencode(gate.path) if gate.is_ready and gate.path is not None else b""
        if self._door is not None:
            self._door.send_record(RecordKind.REFERRAL, USER.pack(gate.user) + path)

    # --- gates

    def _open_gate(self, user: int) -> None:
        """Starts the gate of a user, unless it runs, or too many others do."""
        gate = self._gates.get(user)
        if gate is None:
            if len(self._gates) >= self._most_gates and not self._forget_idle_gate():
                log.warning(
                    "session.refused",
                    f"no gate for user {user}: {self._most_gates} users have one, which is the limit",
                )
                self._refer_user(_UserGate(user))
                return
            gate = self._gates[user] = _UserGate(user)
        if gate.link is None and time.monotonic() >= gate.next_start_s and self._spawn is not None:
            gate.link = link = self._links.create_link(
                GateProcess(
                    lambda kind, body: self._handle_gate_record(gate, link, kind, body),
                    lambda connection, secret: self._adopt_lifeline(gate, connection, secret),
                    lambda took_s: max(self._links.charge_users(link, took_s).values(), default=0.0),
                ),
                gate.user,
            )
            self._spawn(self._run_gate(gate, link))
        elif gate.link is None or gate.is_ready:
            self._refer_user(gate)

    def _forget_idle_gate(self) -> bool:
        """Forgets a user whose gate has ended; returns whether there was one."""
        idle = next((gate for gate in self._gates.values() if gate.link is None), None)
        if idle is not None:
            del self._gates[idle.user]
        return idle is not None

    async def _run_gate(self, gate: _UserGate, link: GateLink) -> None:
        """Runs the gate of a user until it ends."""
        began_s = time.monotonic()
        folder = self._folder / secrets.token_urlsafe(_NAME_BYTES)
        gate.path = served_socket_path(folder)
        late = asyncio.get_running_loop().call_later(GATE_START_S, self._end_unready_gate, gate, link)
        try:
            ending = await self._links.run_gate(link, "user", {"user": gate.user, "folder": str(folder)})
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
                self._links.handle_frame(link, client, frame, gate.user)
            case RecordKind.UNREACHABLE if self._links.listener is not None:
                self._links.listener.on_client_unreachable(self._links.identify_client(link, body))
            case RecordKind.READY:
                gate.is_ready = True
                self._refer_user(gate)
            case RecordKind.LOG:
                log.warning("session.refused", f"the gate of user {gate.user}: {json.loads(body)}", user=gate.user)
            case _:
                pass

    def _adopt_lifeline(self, gate: _UserGate, connection: socket.socket, secret: bytes) -> None:
        if self._links.listener is not None and gate.link is not None:
            self._links.listener.adopt_lifeline(connection, secret)
        else:
            connection.close()
