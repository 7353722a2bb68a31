"""Starts the gates for other hosts, one for each tcp:// address, and passes their frames to the dispatcher.

A gate that has ended is started again at once, and after a pause if it ends again and again. Clients of this host do
not notice. The daemon itself listens to no network.

Each key is a user with a share of the event loop's time, and its questions are weighed as those of local users are. All
keys come over one link, so the gate keeps back the frames of a key that is over its share. The link itself is paused
only while all keys together are over theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.core.text import FIRST_KEY_USER
from streamd.daemon.batch_sender import SpawnTask
from streamd.daemon.gate_process import GateLink, GateLinks, GateListener, GateProcess, compute_restart_pause
from streamd.daemon.sessions import OWN_USER
from streamd.daemon.time_shares import TimeShares
from streamd.errors import ConfigError, ProtocolError
from streamd.ipc.endpoint import split_host_port
from streamd.ipc.key_files import list_key_files, read_key_pair
from streamd.ipc.record_link import KEY_PAUSE, KEY_USER, RecordKind, split_client_frame
from streamd.ipc.router import FrameSender
from streamd.limits import (
    GATE_RESTART_S,
    GATE_SOUND_S,
    GATE_START_S,
    LOOP_BURST_S,
    MAX_KEY_PAUSE_S,
    NETWORK_LOOP_SHARE,
)

_CREDENTIAL: Final = "streamd.key_secret"  # the name under which a service manager hands the secret file over
_MARK: Final = b"n"  # of the clients' identities
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


class NetworkGateKeeper:
    """The gates of `addresses`, tcp:// endpoints. Sends frames to all clients; `inner` to those of this host.

    `descriptor_path` is the daemon's own descriptor socket. Lives on the event loop.
    """

    def __init__(self, inner: FrameSender, addresses: Sequence[str], keys: NetworkKeys, descriptor_path: str) -> None:
        self._inner = inner
        self._keys = keys
        self._descriptor_path = descriptor_path
        loop = asyncio.get_running_loop()
        self._gates = [_NetworkGate(each, split_host_port(each)[1], loop.create_future()) for each in addresses]
        self._links = GateLinks(_MARK)
        self._shares = TimeShares(OWN_USER, NETWORK_LOOP_SHARE, LOOP_BURST_S)  # of all keys together

    @property
    def addresses(self) -> list[str]:
        """The endpoints that are served, with the ports that were picked."""
        return [f"{each.address.rpartition(':')[0]}:{each.port}" for each in self._gates]

    async def start(self, listener: GateListener, spawn: SpawnTask) -> None:
        """Starts all gates, and returns when clients can connect. Raises ConfigError when one cannot listen."""
        self._links.listener = listener
        for gate in self._gates:
            spawn(self._keep_gate(gate))
        try:
            async with asyncio.timeout(GATE_START_S):
                await asyncio.gather(*(gate.started for gate in self._gates))
        except TimeoutError as error:
            raise ConfigError(f"listen: no gate for other hosts within {GATE_START_S:g} s; see the log") from error

    def close(self) -> None:
        """Ends all gates."""
        self._links.kill_all()

    def list_pids(self) -> list[int]:
        """Returns the processes of the gates."""
        return self._links.list_pids()

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when its gate is gone."""
        if not self._links.is_behind_gate(identity):
            return self._inner.send_frame(identity, data, pixels)
        return pixels is None and self._links.send_frame(identity, data)

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
        link = self._links.create_link(
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
        return await self._links.run_gate(link, "network", settings)

    def _handle_record(self, gate: _NetworkGate, link: GateLink, kind: RecordKind, body: bytes) -> None:
        match kind:
            case RecordKind.FRAME:
                client, frame = split_client_frame(body)
                self._links.handle_frame(link, client, frame, read_key_user(client))
            case RecordKind.READY:
                if not body:
                    raise ProtocolError("a gate for other hosts is ready, and does not say at which port")
                self._note_ready(gate, json.loads(body))
            case RecordKind.FAILED:
                gate.failure = json.loads(body)
                link.process.kill()
            case RecordKind.LOG:
                log.warning("session.refused", f"the gate at {gate.address}: {json.loads(body)}")
            case _:
                pass

    def _charge_turn(self, link: GateLink, took_s: float) -> float:
        """Charges the keys for a turn of a link, pauses those over their share, and returns the link's own pause."""
        for user, pause_s in self._links.charge_users(link, took_s).items():
            if pause_s > 0:
                pause_ms = round(min(pause_s, MAX_KEY_PAUSE_S) * 1000)
                link.process.send_record(RecordKind.PAUSE, KEY_PAUSE.pack(user, pause_ms))
        return self._shares.charge_and_get_pause_s(_ALL_KEYS, took_s, time.monotonic())

    def _note_ready(self, gate: _NetworkGate, facts: dict[str, int | bool]) -> None:
        gate.port = int(facts["port"])
        if gate.started.done():
            return
        if not facts["has_bbr"]:
            log.warning(
                "gate.no_bbr",
                f"{gate.address}: this kernel has no BBR, so a link that loses packets will be slow: run  modprobe "
                "tcp_bbr  and restart",
            )
        log.info("gate.ready", f"serving other hosts at {gate.address.rpartition(':')[0]}:{gate.port}")
        gate.started.set_result(None)
