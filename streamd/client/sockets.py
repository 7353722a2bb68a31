"""The sockets of a client: each attempt opens a new one, and each is used by one thread.

Where other users may connect too, a door listens at the endpoint, and refers a client to the socket of its user.
"""

from __future__ import annotations

import os
import select
import socket as unix_socket
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import zmq

from streamd.client.arguments import format_argument
from streamd.errors import ConfigError, ConnectError
from streamd.ipc.endpoint import (
    decode_referral,
    gate_folder,
    is_open_to_others,
    is_remote,
    own_socket_path,
    receive_referral,
    socket_path,
    split_host_port,
)
from streamd.ipc.key_files import KeyPair, read_key_pair, read_public_key
from streamd.limits import HANDSHAKE_MS, KEEPALIVE_S, SILENT_LINK_MS

_TIMEVAL: Final = struct.Struct("@ll")  # seconds, microseconds
_MONITOR_EVENT: Final = struct.Struct("=Hi")  # event number and value, as a monitor socket sends them
KEY_REFUSAL: Final = (
    "the daemon does not allow this client's key; put the public half, the .key file, into the folder that its "
    "configuration names as clients"
)
_OTHERS_BITS: Final = 0o077
_SENT_AWAY: Final = "the daemon has no room for this user's connections now"
_RECONNECT_MS: Final = 1000  # a daemon's host that is away is asked again; libzmq takes this time at random
_CONNECT_S: Final = 1.0  # in which the kernel lets a client into a door's full backlog


class UnreachableError(ConnectError):
    """No connection could be opened. `refusal` is the reason of a daemon that is there; None: there is none."""

    def __init__(self, endpoint: str, why: str, refusal: str | None = None) -> None:
        super().__init__(endpoint, why)
        self.refusal = refusal


def open_dealer_socket(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, curve: CurveKeys | None = None
) -> zmq.Socket[bytes]:
    """Opens a DEALER for one attempt to reach the daemon, with the keys that a tcp:// endpoint needs.

    Its queue has no limit of its own, since credit bounds it. ZMTP heartbeats are off: they would disconnect a busy
    trainer.
    """
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.IMMEDIATE, 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        if curve is not None:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, curve.server.encode())
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, curve.public.encode())
            dealer.setsockopt(zmq.CURVE_SECRETKEY, curve.secret.encode())
            dealer.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
            dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            dealer.setsockopt(zmq.IPV6, ":" in split_host_port(endpoint)[0])
            # The kernel ends the connection when its other end is gone.
            dealer.setsockopt(zmq.TCP_KEEPALIVE, 1)
            dealer.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
            dealer.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S)
            dealer.setsockopt(zmq.TCP_MAXRT, SILENT_LINK_MS)
        dealer.connect(endpoint)
    except BaseException:
        dealer.close(0)
        raise
    return dealer


def find_connect_address(endpoint: str, timeout_s: float, wake_descriptor: int | None = None) -> str:
    """Returns the address at which this process is served: a tcp:// endpoint itself, or what its door says.

    See `find_served_path`. Raises UnreachableError.
    """
    if is_remote(endpoint):
        return endpoint
    return f"ipc://{find_served_path(endpoint, timeout_s, wake_descriptor)}"


def find_served_path(endpoint: str, timeout_s: float, wake_descriptor: int | None = None) -> Path:
    """Returns the path of the socket that serves this process at an ipc:// endpoint.

    It waits for the door up to `timeout_s`, and no longer when `wake_descriptor` becomes readable. Raises
    UnreachableError.
    """
    path = socket_path(endpoint)
    try:
        if not is_open_to_others(stat.S_IMODE(path.stat().st_mode)):
            return path
    except OSError as error:
        raise UnreachableError(endpoint, str(error.strerror)) from error
    if own_path := _find_own_daemon_socket(path):
        return own_path
    # Standard case: the door says where this user is served.
    deadline_s = time.monotonic() + timeout_s
    with unix_socket.socket(unix_socket.AF_UNIX) as door:
        try:
            # The kernel itself waits while the backlog is full; a socket with a time-out of Python's would fail.
            wait_s = min(_CONNECT_S, timeout_s)
            wait = _TIMEVAL.pack(int(wait_s), int(wait_s % 1 * 1e6))
            door.setsockopt(unix_socket.SOL_SOCKET, unix_socket.SO_SNDTIMEO, wait)
            door.connect(str(path))
            poller = select.poll()
            poller.register(door, select.POLLIN)
            if wake_descriptor is not None:
                poller.register(wake_descriptor, select.POLLIN)
            ready = dict(poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000))
            line = receive_referral(door) if door.fileno() in ready else None
        except OSError as error:
            raise UnreachableError(f"ipc://{path}", str(error.strerror or error)) from error
    if line is None:
        raise UnreachableError(f"ipc://{path}", f"no answer within {timeout_s:g} s")
    if not line:
        raise UnreachableError(endpoint, _SENT_AWAY, refusal=_SENT_AWAY)
    return Path(decode_referral(line, str(path)))


def _find_own_daemon_socket(path: Path) -> Path | None:
    """Returns the socket behind the door at `path` that a daemon of this very user serves; None if there is none.

    Only this user can have made the folder that it lies in.
    """
    own_path = own_socket_path(gate_folder(path))
    try:
        state = own_path.parent.stat()
        is_own = state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_BITS
        return own_path if is_own and own_path.is_socket() else None
    except OSError:
        return None


def open_loss_monitor(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Returns a monitor that gets an event when a connection of a socket has ended, or its key was refused."""
    return socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)


def is_key_refused(monitor: zmq.Socket[bytes]) -> bool:
    """Whether the next event of a monitor says that the daemon does not allow this client's key."""
    event, _ = monitor.recv_multipart(zmq.DONTWAIT)
    return bool(_MONITOR_EVENT.unpack_from(event)[0] == zmq.EVENT_HANDSHAKE_FAILED_AUTH)


def has_socket_input(socket: zmq.Socket[bytes]) -> bool:
    """Returns whether a message can be received. Reading the events also re-arms the socket's descriptor."""
    events: Any = socket.getsockopt(zmq.EVENTS)
    return bool(events & zmq.POLLIN)


def is_socket_listening(endpoint: str) -> bool:
    """Returns whether a process listens at an ipc:// endpoint, without waiting for an answer; False for another one."""
    if is_remote(endpoint):
        return False
    path = socket_path(endpoint)
    try:
        with unix_socket.socket(unix_socket.AF_UNIX, unix_socket.SOCK_STREAM | unix_socket.SOCK_NONBLOCK) as probe:
            probe.connect(str(_find_own_daemon_socket(path) or path))
    except BlockingIOError:  # the listener's backlog is full, so something listens
        return True
    except OSError:
        return False
    return True


# --- The CURVE keys of a client: its own pair, and the public key of the daemon that it connects to.


_FORM: Final = 'curve={"secret": "me.key_secret", "server": "daemon.key"}'


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The keys of one client for one daemon, as text."""

    public: str
    secret: str = field(repr=False)
    server: str


def find_curve_keys(endpoint: str, curve: object) -> CurveKeys | None:
    """Returns the keys for an endpoint, from `curve` or the environment; None for one that needs none.

    Raises ConfigError for a tcp:// endpoint without keys, for keys without such an endpoint, and for files without
    keys.
    """
    if curve is not None and (not isinstance(curve, Mapping) or set(curve) - {"secret", "server"}):
        raise ConfigError(f"{format_argument('curve', curve)}: write {_FORM}")
    given: dict[str, str] = {}
    for name, value in (curve or {}).items():
        if not isinstance(value, str | os.PathLike):
            raise ConfigError(f"{format_argument(f'curve {name}', value)}: write the path of a key file: {_FORM}")
        given[name] = os.fsdecode(value)
    if not is_remote(endpoint):
        if given:
            raise ConfigError(f"curve: keys are for tcp:// endpoints, and {endpoint} is none; leave curve out")
        return None
    secret = given.get("secret") or os.environ.get("STREAMD_CURVE_SECRET")
    server = given.get("server") or os.environ.get("STREAMD_CURVE_SERVER")
    if not secret or not server:
        missing = "your secret key" if not secret else "the daemon's public key"
        raise ConfigError(
            f"{endpoint} needs keys, and {missing} is missing: write {_FORM}, give --curve-secret and --curve-server, "
            "or set $STREAMD_CURVE_SECRET and $STREAMD_CURVE_SERVER; `streamd keygen DIR` makes a pair"
        )
    pair = read_key_pair(Path(secret).expanduser(), "curve secret")
    return CurveKeys(pair.public, pair.secret, read_public_key(Path(server).expanduser(), "curve server"))


def create_key_pair() -> KeyPair:
    """Makes a new pair of keys."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())
