"""Decides which keys may connect: the handler that libzmq asks in each CURVE handshake (ZAP, ZeroMQ's RFC 27).

The listening socket requires a handler: without an answer, libzmq lets nobody in. The handler lives in the gate's only
thread, so an error in it ends the gate, and no gate runs without one.
"""

from __future__ import annotations

import time
from typing import Final

import zmq
from zmq.utils import z85

from streamd.gate.client_keys import ClientKeys
from streamd.gate.socket_reader import SocketReader

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
        """Answers one question: the user id of a connection is its public key, as text."""
        who, empty, *question = self._socket.recv_multipart(zmq.DONTWAIT)
        public = self._find_allowed_key(question)
        request = question[1] if len(question) > 1 else b""
        self._send_answer([who, empty, _VERSION, request], public)

    def _send_answer(self, head: list[bytes], public: str) -> None:
        status, text = (b"200", b"") if public else (b"400", b"this key may not connect")
        self._socket.send_multipart([*head, status, text, public.encode(), b""])
        self._reader.schedule_read()

    def _find_allowed_key(self, question: list[bytes]) -> str:
        """Returns the public key of a question if it may connect, else ""."""
        if len(question) != _PARTS or question[0] != _VERSION or question[2] != DOMAIN or question[5] != b"CURVE":
            return ""
        if len(question[6]) != _KEY_BYTES:
            return ""
        public = z85.encode(question[6]).decode()
        key = self._keys.admit_client(public, question[3].decode(errors="replace"), time.monotonic())
        return key.public if key is not None else ""

    def close(self) -> None:
        """Answers no more questions: nobody is let in."""
        self._reader.close()
        self._socket.close(0)
