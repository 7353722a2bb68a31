"""The ROUTER socket of a gate for other hosts: encrypted, with the connections and the keys behind them.

libzmq says which descriptor a message came from, and when that descriptor's connection ended. So a connection that is
lost is known at once, also if nothing is sent to it, and that of a removed key can be closed.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from streamd.core.leaky_bucket import LeakyBucket
from streamd.ipc.key_files import (
    ClientKey,
    KeyPair,
    compute_key_user,
    format_fingerprint,
    list_key_files,
    read_client_keys,
)
from streamd.ipc.router import MONITOR_EVENT, RouterSocket, SocketReader, has_input
from streamd.limits import (
    KEEPALIVE_S,
    KEY_CONNECTIONS_A_S,
    KEY_CONNECTIONS_BURST,
    KEY_FRAMES_A_S,
    KEY_FRAMES_BURST,
    KEY_OPEN_CONNECTIONS,
    MAX_CLIENT_KEYS,
    REMOTE_BACKLOG,
    REMOTE_QUEUE,
    SILENT_CONNECTIONS,
    SILENT_LINK_MS,
    STRANGER_CONNECTIONS_A_S,
    STRANGER_CONNECTIONS_BURST,
)

_NO_WAIT: Final = int(zmq.DONTWAIT)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_ENDED: Final = int(zmq.EVENT_DISCONNECTED)
_BBR: Final = b"bbr"


@dataclass(slots=True, eq=False)
class Peer:
    """A client with a connection: its routing id, its key with its number, and the descriptor of the connection."""

    identity: bytes
    key: ClientKey
    user: int
    descriptor: int
    is_lost: bool = False


def open_network_socket(host: str, port: int) -> tuple[socket.socket, bool]:
    """Returns a listening socket, and whether its connections use BBR, which they inherit. Raises OSError.

    With the kernel's usual congestion control, a link that loses packets carries next to nothing.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        has_bbr = True
        try:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _BBR)
        except OSError:
            has_bbr = False
        listener.bind(address)
        listener.listen(REMOTE_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener, has_bbr


class NetworkRouter(RouterSocket):
    """Receives and sends the frames of clients on other hosts. Lives on the event loop.

    `handle_frame(peer, frame)` gets each frame; `on_lost(peer)` is called when the connection of a peer that has sent a
    frame is gone.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: ClientKeys,
        handle_frame: Callable[[Peer, bytes], None],
        on_lost: Callable[[Peer], None],
    ) -> None:
        super().__init__(context)
        self._keys = keys
        self._handle_frame = handle_frame
        self._on_lost = on_lost
        self._peers: dict[bytes, Peer] = {}
        self._connections = OpenConnections()

    def start_listening(self, listener: socket.socket, pair: KeyPair) -> None:
        """Serves the connections to a listening socket, which libzmq closes. Raises OSError, also for ZeroMQ's."""
        for option, value in (
            (zmq.RCVHWM, REMOTE_QUEUE),
            (zmq.CURVE_SERVER, 1),
            (zmq.ZAP_ENFORCE_DOMAIN, 1),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S),
            (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S),
            (zmq.TCP_MAXRT, SILENT_LINK_MS),
            (zmq.IPV6, listener.family == socket.AF_INET6),
            (zmq.ZAP_DOMAIN, DOMAIN),
            (zmq.CURVE_SECRETKEY, pair.secret.encode()),
        ):
            self._socket.setsockopt(option, value)
        host, port = listener.getsockname()[:2]
        try:
            self._watch_connections(_ACCEPTED | _ENDED, self._read_all_events)
            self._bind_socket(listener, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        self._start_reading(self._receive_frame)

    def find_peer(self, identity: bytes) -> Peer | None:
        return self._peers.get(identity)

    def close_revoked(self) -> None:
        """Closes the connections whose keys may not connect any more, and gives the others their present rights."""
        for peer in list(self._peers.values()):
            key = self._keys.find_key(peer.key.public)
            if key is None:
                self.close_connection(peer)
            else:
                peer.key = key

    def close_connection(self, peer: Peer) -> None:
        """Closes a client's connection."""
        self._read_all_events()
        if not peer.is_lost:
            _shut_down(peer.descriptor)
            self._drop_peer(peer)

    def _read_all_events(self) -> None:
        """Handles what libzmq reports: connections were accepted, or have ended. Too many silent ones are closed."""
        # A descriptor is only looked at when all reports have been read. It may be another connection's by then, but
        # never anything else of this process, which opens nothing in between.
        while self._monitor is not None and has_input(self._monitor):
            event, _ = self._monitor.recv_multipart(_NO_WAIT)
            number, descriptor = MONITOR_EVENT.unpack_from(event)
            identity = self._connections.remove_connection(descriptor)
            if identity is not None:
                self._drop_peer(self._peers[identity])
            if number == _ACCEPTED:
                # The address of the host at the other end; "" if the connection has ended already.
                host = ""
                with suppress(OSError, IndexError), _copy_connection(descriptor) as connection:
                    host = str(connection.getpeername()[0])
                self._connections.add_connection(descriptor, host)
        while (superfluous := self._connections.take_superfluous()) is not None:
            _shut_down(superfluous)

    def _drop_peer(self, peer: Peer) -> None:
        if not peer.is_lost:
            peer.is_lost = True
            self._peers.pop(peer.identity, None)
            self._connections.remove_connection(peer.descriptor)
            self._on_lost(peer)

    def _receive_frame(self) -> None:
        identity, data, frame = self._receive_message()
        peer = self._peers.get(identity)
        # The first frame of a client, which may be gone, or may not connect any more.
        if peer is None:
            # The end of an earlier connection with this descriptor was reported before the frame was, so reading all
            # reports first leaves the connection that the frame came from, or none.
            self._read_all_events()
            key, descriptor = self._keys.find_key(str(frame.get("User-Id"))), int(frame.get(zmq.SRCFD))
            if key is None or not self._connections.note_frame(descriptor, identity):
                return
            peer = self._peers[identity] = Peer(identity, key, compute_key_user(key.public), descriptor)
            if sum(each.user == peer.user for each in self._peers.values()) > KEY_OPEN_CONNECTIONS:
                self.close_connection(peer)
                return
        if self._keys.count_frame(peer.key.public, time.monotonic()):
            self._handle_frame(peer, data)
        else:
            self.close_connection(peer)


def _shut_down(descriptor: int) -> None:
    """Ends a connection of libzmq's, which closes its descriptor then."""
    with suppress(OSError), _copy_connection(descriptor) as connection:  # it may have ended by itself
        connection.shutdown(socket.SHUT_RDWR)


def _copy_connection(descriptor: int) -> socket.socket:
    """Returns a socket over a copy of a descriptor of libzmq's. Raises OSError if that is closed, or is no socket."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # the number stands for a file by now
        os.close(copy)
        raise


# --- The open connections of a gate for other hosts, by descriptor, and which of them makes room for another. Pure.
#
# Anybody who reaches the address can open a connection. One that has not sent a frame yet, since it is in its
# handshake or says nothing, makes room for a newer one when there are too many: the oldest of the host that has the
# most of them.


@dataclass(slots=True)
class OpenConnections:
    """Connections that were accepted and have not ended, with the routing id of each that has sent a frame."""

    most_silent: int = SILENT_CONNECTIONS
    _silent: dict[int, str] = field(default_factory=dict)  # by descriptor: the host at the other end; the oldest first
    _speaking: dict[int, bytes] = field(default_factory=dict)  # by descriptor: the routing id

    def add_connection(self, descriptor: int, host: str) -> None:
        """Adds a connection that was accepted."""
        self._speaking.pop(descriptor, None)
        self._silent[descriptor] = host

    def remove_connection(self, descriptor: int) -> bytes | None:
        """Removes a connection that has ended; returns its routing id if it has sent a frame."""
        self._silent.pop(descriptor, None)
        return self._speaking.pop(descriptor, None)

    def note_frame(self, descriptor: int, identity: bytes) -> bool:
        """Notes the first frame of a connection. False if there is no such connection any more."""
        if self._silent.pop(descriptor, None) is None:
            return False
        self._speaking[descriptor] = identity
        return True

    def take_superfluous(self) -> int | None:
        """Removes a silent connection that must make room, and returns its descriptor; None if there is room."""
        if len(self._silent) <= self.most_silent:
            return None
        [(crowd, _)] = Counter(self._silent.values()).most_common(1)
        descriptor = next(each for each, host in self._silent.items() if host == crowd)
        del self._silent[descriptor]
        return descriptor


# --- Decides which keys may connect: the handler that libzmq asks in each CURVE handshake (ZAP, ZeroMQ's RFC 27).
#
# The listening socket requires a handler: without an answer, libzmq lets nobody in. The handler lives in the gate's
# only thread, so an error in it ends the gate, and no gate runs without one.


DOMAIN: Final = b"streamd"
_ADDRESS: Final = "inproc://zeromq.zap.01"  # where libzmq looks for the handler of its process
_VERSION: Final = b"1.0"
_PARTS: Final = 7  # of a request with CURVE: version, id, domain, address, identity, mechanism, key
_KEY_BYTES: Final = 32


class Authenticator:
    """Answers libzmq's questions about keys by `keys`. Lives on the event loop."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ClientKeys) -> None:
        self._keys = keys
        self._socket = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ADDRESS)
        self._reader = SocketReader(self._socket, self._answer_question)

    def _answer_question(self) -> None:
        """Answers one question: the user id of a connection is its public key, as text, if it may connect."""
        who, empty, *question = self._socket.recv_multipart(_NO_WAIT)
        public = b""
        if len(question) == _PARTS and len(question[6]) == _KEY_BYTES:
            version, _, domain, address, _, mechanism, key = question
            if (version, domain, mechanism) == (_VERSION, DOMAIN, b"CURVE"):
                text = z85.encode(key).decode()
                known = self._keys.admit_client(text, address.decode(errors="replace"), time.monotonic())
                public = known.public.encode() if known is not None else b""
        verdict = (b"200", b"") if public else (b"400", b"this key may not connect")
        request = question[1] if len(question) > 1 else b""
        self._socket.send_multipart([who, empty, _VERSION, request, *verdict, public, b""])
        self._reader.schedule_read()

    def close(self) -> None:
        """Answers no more questions: nobody is let in."""
        self._reader.close()
        self._socket.close(0)


# --- The keys that may connect to a gate, as their folder holds them now, and what each may use.
#
# Bounds keep a key, or somebody without one, from taking the gate's time from others. Time is an argument.


_LOG: Final = logging.getLogger("streamd.gate")
_SETTING: Final = "curve.clients"
_REMEMBERED_STRANGERS: Final = 256  # keys without rights of which the log has a line already


@dataclass(slots=True)
class _KeyUse:
    """What the clients of a key have taken of the gate lately."""

    connections: LeakyBucket = field(default_factory=lambda: LeakyBucket(KEY_CONNECTIONS_A_S))
    frames: LeakyBucket = field(default_factory=lambda: LeakyBucket(KEY_FRAMES_A_S))


class ClientKeys:
    """The keys in `folder`. Nobody is allowed before `reload_keys` has read it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, tuple[int, int, int]] | None = None  # as they were read; None: never
        self._keys: dict[str, ClientKey] = {}
        self.generation = 0  # how often the keys have changed
        self._uses: dict[str, _KeyUse] = {}  # by public key; of those that may connect
        self._strangers_bucket = LeakyBucket(STRANGER_CONNECTIONS_A_S)
        self._strangers: OrderedDict[str, None] = OrderedDict()  # the newest last

    def find_key(self, public: str) -> ClientKey | None:
        """Returns a key that may connect, None for any other."""
        return self._keys.get(public)

    def reload_keys(self) -> None:
        """Reads the files again if any has changed. Without its folder, nobody is allowed."""
        try:
            files = list_key_files(self._folder)
        except OSError as error:
            if self._files != {} or self._keys:
                _LOG.warning(
                    "%s: cannot read %s: %s; nobody on another host is let in", _SETTING, self._folder, error.strerror
                )
            files = {}
        if files == self._files:
            return
        if len(files) > MAX_CLIENT_KEYS:
            _LOG.warning("%s: %d keys; only the first %d may connect", _SETTING, len(files), MAX_CLIENT_KEYS)
        self._files = files
        self._keys, faults = read_client_keys(list(files)[:MAX_CLIENT_KEYS], _SETTING)
        self._uses = {public: use for public, use in self._uses.items() if public in self._keys}
        for fault in faults:
            _LOG.warning("%s", fault)
        self.generation += 1

    def admit_client(self, public: str, address: str, now_s: float) -> ClientKey | None:
        """Returns the key of a client that connects now, None if it is refused. Each stranger is logged once."""
        if public not in self._keys and self._strangers_bucket.compute_level(now_s) < STRANGER_CONNECTIONS_BURST:
            self._strangers_bucket.add(1.0, now_s)
            self.reload_keys()  # its file may be there by now
            if public not in self._keys and public not in self._strangers:
                self._strangers[public] = None
                if len(self._strangers) > _REMEMBERED_STRANGERS:
                    self._strangers.popitem(last=False)
                fingerprint = format_fingerprint(public)
                _LOG.warning("a client at %s was refused: its key %s is not in %s", address, fingerprint, self._folder)
        key = self._keys.get(public)
        if key is None:
            return None
        connections = self._uses.setdefault(public, _KeyUse()).connections
        if connections.compute_level(now_s) >= KEY_CONNECTIONS_BURST:
            return None
        connections.add(1.0, now_s)
        return key

    def count_frame(self, public: str, now_s: float) -> bool:
        """Counts a frame of a key, and returns whether all its clients together have kept to their rate."""
        frames = self._uses.setdefault(public, _KeyUse()).frames
        frames.add(1.0, now_s)
        return frames.compute_level(now_s) <= KEY_FRAMES_BURST
