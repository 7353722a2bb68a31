"""How attackers reach the daemon: its endpoint, ZMTP written by hand, and sessions without a client's manners."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Self

import zmq

from streamd.client.sockets import CurveKeys, UnreachableError, find_curve_keys, find_served_path
from streamd.core.spec import Cursor, StreamSpec
from streamd.ipc.endpoint import descriptor_socket_path, is_remote, split_host_port
from streamd.ipc.messages import (
    EMPTY_HEADER,
    AskStreams,
    ClientMessage,
    DaemonMessage,
    FrameHeader,
    Progress,
    Refused,
    Streams,
    Subscribe,
    Welcome,
    decode_daemon_frame,
    encode_frame,
    split_records,
)

TIMEOUT_S: Final = 2.0
OTHER_HOST: Final = "127.0.0.2"  # where attackers on the network come from
_BACKLOG_S: Final = 0.002
MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def find_reachable_endpoint(public: str) -> str:
    """Returns the endpoint that serves this process, which asks for it at the daemon's public one. Raises OSError."""
    if is_remote(public):
        return public
    try:
        return f"ipc://{find_served_path(public, TIMEOUT_S)}"
    except UnreachableError as error:
        raise ConnectionRefusedError(str(error)) from error


def read_path(endpoint: str) -> str:
    """Returns the path of a socket."""
    return endpoint.removeprefix("ipc://")


def connect_socket(path: str, kind: int = socket.SOCK_STREAM, patience_s: float = TIMEOUT_S) -> socket.socket:
    """Connects to a Unix socket, and waits at most TIMEOUT_S for anything on it later.

    Raises BlockingIOError if the listener's backlog stays full for `patience_s`, and OSError.
    """
    link = socket.socket(socket.AF_UNIX, kind)
    link.settimeout(TIMEOUT_S)
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            link.connect(path)
        except BlockingIOError:  # the kernel does not wait for a place in the backlog where there is a timeout
            if time.monotonic() < deadline_s:
                time.sleep(_BACKLOG_S)
                continue
            link.close()
            raise
        except OSError:
            link.close()
            raise
        return link


def connect_to_address(endpoint: str, patience_s: float = TIMEOUT_S) -> socket.socket:
    """Connects to a tcp:// address, and waits at most TIMEOUT_S for anything on it later. Raises OSError."""
    link = socket.create_connection(split_host_port(endpoint), patience_s, source_address=(OTHER_HOST, 0))
    link.settimeout(TIMEOUT_S)
    return link


class HandmadeDealer:
    """A DEALER of ZMTP 3.1 without libzmq, which keeps to no bound."""

    def __init__(self, endpoint: str) -> None:
        self.link = connect_socket(read_path(endpoint))
        self.link.sendall(_GREETING)
        properties = b"".join(
            bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
            for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", b""))
        )
        ready = b"\x05READY" + properties
        self.link.sendall(bytes([_COMMAND, len(ready)]) + ready)

    def wait_for_handshake(self) -> Self:
        """Waits for the other side's greeting and READY."""
        wanted = len(_GREETING) + 2
        while wanted > 0:
            data = self.link.recv(wanted)
            if not data:
                raise ConnectionResetError("the daemon closed the connection in the handshake")
            wanted -= len(data)
        return self

    def send_part(self, data: bytes, flags: int = MORE) -> None:
        """Sends one part of a message, and perhaps not its end."""
        self.link.sendall(bytes([flags | _LONG]) + struct.pack(">Q", len(data)) + data)

    def close(self) -> None:
        self.link.close()


@dataclass(slots=True)
class Intruder:
    """A DEALER that sends any message, and reads only when it likes to."""

    endpoint: str
    header: FrameHeader = EMPTY_HEADER
    welcome: Welcome | None = None
    lifeline: socket.socket | None = None
    unread: deque[tuple[FrameHeader, DaemonMessage]] = field(default_factory=deque)
    dealer: zmq.Socket[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.dealer = zmq.Context.instance().socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.RCVHWM, 1)  # what it does not read stays in the daemon
        self.dealer.setsockopt(zmq.SNDTIMEO, int(TIMEOUT_S * 1000))
        self.set_patience(TIMEOUT_S)

    def set_patience(self, timeout_s: float) -> None:
        """Sets how long it waits for a message."""
        self.dealer.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))

    def connect(self, routing_id: bytes = b"") -> Self:
        if routing_id:
            self.dealer.setsockopt(zmq.ROUTING_ID, routing_id)
        keys = find_curve_keys(self.endpoint, None)  # for an address of another host, from the environment
        if keys is None:
            self.dealer.connect(self.endpoint)
        else:
            self.connect_with_keys(keys)
        return self

    def connect_with_keys(self, keys: CurveKeys) -> Self:
        """Connects to an address from the attackers' one."""
        self.dealer.setsockopt(zmq.CURVE_SERVERKEY, keys.server.encode())
        self.dealer.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
        self.dealer.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
        host, port = split_host_port(self.endpoint)
        self.dealer.connect(f"tcp://{OTHER_HOST}:0;{host}:{port}")
        return self

    def send(self, message: ClientMessage) -> None:
        self.dealer.send(encode_frame(self.header, message))

    def receive(self) -> list[tuple[FrameHeader, DaemonMessage]]:
        """Waits for one message of the daemon and returns its records, without pixels."""
        data, *_ = self.dealer.recv_multipart()
        return [decode_daemon_frame(record) for record in split_records(data)]

    def wait_for(self, *kinds: type[DaemonMessage]) -> tuple[FrameHeader, Any]:
        """Reads until a message of one of these kinds comes. Raises zmq.Again."""
        while True:
            if not self.unread:
                self.unread.extend(self.receive())
            header, message = self.unread.popleft()
            if isinstance(message, kinds):
                return header, message

    def ask_spec(self, stream: str = "train") -> StreamSpec:
        self.send(AskStreams())
        _, answer = self.wait_for(Streams)
        spec: StreamSpec = answer.streams[stream]
        return spec

    def subscribe(self, stream: str = "train", **changes: Any) -> bool:
        """Subscribes, and allows the batches of its credit; returns whether it was admitted."""
        wanted: dict[str, Any] = {
            "rank": 0, "world": 1, "epochs": None, "cursor": Cursor(), "uneven": "drop", "credit": 16,
            "transport": "shared", "order_id": None, "resuming": False, "pid": os.getpid(), **changes,
        }  # fmt: skip
        self.header = EMPTY_HEADER
        self.send(Subscribe(stream, **wanted))
        header, answer = self.wait_for(Welcome, Refused)
        if isinstance(answer, Refused):
            return False
        self.header, self.welcome = FrameHeader(header.boot, header.session, 0), answer
        self.send(Progress(answer.credit, (), 0, 0))
        return True

    def pair(self) -> socket.socket:
        """Opens the lifeline of its session."""
        assert self.welcome is not None
        self.lifeline = connect_socket(descriptor_socket_path(read_path(self.endpoint)), socket.SOCK_SEQPACKET)
        self.lifeline.send(self.welcome.secret)
        return self.lifeline

    def close(self) -> None:
        self.dealer.close(0)
        if self.lifeline is not None:
            self.lifeline.close()


def find_descriptor_path(public: str) -> str:
    """Returns the path of the descriptor socket of the endpoint that serves this process. Raises OSError."""
    return descriptor_socket_path(read_path(find_reachable_endpoint(public)))
