"""The door's line: what it says, and what else may answer at a path."""

from __future__ import annotations

import socket
import threading

import pytest

from streamd.errors import ConnectError
from streamd.ipc.endpoint import decode_referral, encode_referral, receive_referral


@pytest.mark.parametrize("path", ["/run/streamd/streamd.sock.d/own/s", "/home/ä b/s"])
def test_a_referral_names_the_path(path: str) -> None:
    assert decode_referral(encode_referral(path.encode()), "/public") == path


def test_a_socket_without_a_door_is_referred_to_itself() -> None:
    assert decode_referral(b"\xff\0\0", "/public") == "/public"


@pytest.mark.parametrize("line", [b"HTTP/1.1 400 Bad Request\r\n", b"streamd /no/end", b"\0"])
def test_another_answer_is_refused_and_shown(line: bytes) -> None:
    with pytest.raises(ConnectError, match="answered there, which is not streamd"):
        decode_referral(line, "/public")


@pytest.mark.parametrize(
    ("parts", "received"),
    [
        ([b"streamd /a", b"/b\n"], b"streamd /a/b\n"),
        ([b"\xff\0", b"\0\0"], b"\xff\0"),
        ([], b""),
        ([b"x" * 1000], b"x" * 256),
    ],
    ids=["in parts", "ZeroMQ", "nothing", "endless"],
)
def test_a_line_is_received_to_its_end(parts: list[bytes], received: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(10)

        def send_parts() -> None:
            for part in parts:
                near.sendall(part)
            near.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send_parts)
        sender.start()
        said = receive_referral(far)
        sender.join()
    assert said.startswith(received[:2])
    if not received.startswith(b"\xff"):
        assert said == received
