"""Starts the gates for other hosts, one for each tcp:// address, and passes their frames to the dispatcher.

A gate that has ended is started again at once, and after a pause if it ends again and again. Clients of this host do
not notice. The daemon itself listens to no network.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamd.core import log
from streamd.daemon.gate_keeper import GateListener
from streamd.daemon.gate_process import GateProcess
from streamd.daemon.receipt_sender import SpawnTask
from streamd.errors import ConfigError
from streamd.ipc.endpoint import split_host_port
from streamd.ipc.key_files import list_key_files, read_key_pair
from streamd.ipc.record_link import KEY_USER, RecordKind, split_client_frame
from streamd.ipc.router import FrameSender
from streamd.limits import GATE_RESTART_MAX_S, GATE_RESTART_S, GATE_SOUND_S, GATE_START_S

_IDENTITY: Final = struct.Struct("<cI")  # how its clients are told from others: a mark, the number of the gate's start
_CREDENTIAL: Final = "streamd.key_secret"  # the name under which a service manager hands the secret file over
_MARK: Final = b"n"  # the identities that a ROUTER makes begin with a zero, those behind users' gates with a g
ALL_KEYS: Final = (1 << 33) + 1  # the user that a gate's time on the loop is charged to: all its clients together


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


@dataclass(slots=True, eq=False)
class _NetworkGate:
    """The gate of one address. Each start has a number of its own; all have the port that the first one got."""

    address: str
    port: int
    started: asyncio.Future[None]
    number: int = 0
    process: GateProcess | None = None
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
        self._by_number: dict[int, _NetworkGate] = {}  # those that run
        self._numbers = itertools.count(1)
        self._listener: GateListener | None = None

    @property
    def addresses(self) -> list[str]:
        """The endpoints that are served, with the ports that were picked."""
        return [f"{each.address.rpartition(':')[0]}:{each.port}" for each in self._gates]

    async def start(self, listener: GateListener, spawn: SpawnTask) -> None:
        """Starts all gates, and returns when clients can connect. Raises ConfigError when one cannot listen."""
        self._listener = listener
        for gate in self._gates:
            spawn(self._keep_gate(gate))
        try:
            async with asyncio.timeout(GATE_START_S):
                await asyncio.gather(*(gate.started for gate in self._gates))
        except TimeoutError as error:
            raise ConfigError(f"listen: no gate for other hosts within {GATE_START_S:g} s; see the log") from error

    def close(self) -> None:
        """Ends all gates."""
        for gate in self._gates:
            if gate.process is not None:
                gate.process.kill()

    def list_pids(self) -> list[int]:
        """Returns the processes of the gates."""
        return [gate.process.pid for gate in self._gates if gate.process is not None]

    def send_frame(self, identity: bytes, data: bytes, pixels: memoryview | None = None) -> bool:
        """Sends to one client, and never waits. False when its gate is gone."""
        if identity[:1] != _MARK:
            return self._inner.send_frame(identity, data, pixels)
        gate = self._by_number.get(_IDENTITY.unpack_from(identity)[1])
        if gate is None or gate.process is None or pixels is not None:
            return False
        return gate.process.send_frame(identity[_IDENTITY.size :], data)

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
            gate.pause_s = (
                GATE_RESTART_S if is_sound else min(GATE_RESTART_MAX_S, max(GATE_RESTART_S, 2 * gate.pause_s))
            )
            log.warning(
                "gate.ended",
                f"the gate at {gate.address} has ended: {gate.failure or ending}; its clients come to the next one",
                pause_s=gate.pause_s,
            )
            await asyncio.sleep(gate.pause_s)

    async def _run_gate(self, gate: _NetworkGate) -> str:
        """Runs the gate of an address until it ends, and returns how it did."""
        gate.process = process = GateProcess(
            lambda kind, body: self._handle_record(gate, kind, body),
            measure_pause_s=lambda took_s: self._listener.charge_user(ALL_KEYS, took_s) if self._listener else 0.0,
        )
        gate.number, gate.failure = next(self._numbers), ""
        self._by_number[gate.number] = gate
        settings = {
            "host": split_host_port(gate.address)[0],
            "port": gate.port,
            "secret": str(self._keys.secret),
            "clients": str(self._keys.clients),
            "descriptors": self._descriptor_path,
        }
        try:
            await process.start("network", settings)
            return await process.wait_until_ended()
        except OSError as error:
            return f"it cannot be started: {error.strerror}"
        finally:
            process.kill()
            gate.process = None
            del self._by_number[gate.number]
            if self._listener is not None:
                self._listener.on_gate_ended(_IDENTITY.pack(_MARK, gate.number))

    def _handle_record(self, gate: _NetworkGate, kind: RecordKind, body: bytes) -> None:
        listener = self._listener
        if listener is None:
            return
        match kind:
            case RecordKind.FRAME:
                identity, frame = split_client_frame(body)
                (user,) = KEY_USER.unpack_from(identity)
                listener.handle_frame(_IDENTITY.pack(_MARK, gate.number) + identity, frame, user)
            case RecordKind.READY:
                self._note_ready(gate, json.loads(body))
            case RecordKind.FAILED:
                gate.failure = json.loads(body)
                if gate.process is not None:
                    gate.process.kill()
            case RecordKind.LOG:
                log.warning("session.refused", f"the gate at {gate.address}: {json.loads(body)}")
            case _:
                pass

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
