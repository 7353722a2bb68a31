"""The sockets of a client: one for each attempt, and one thread looks at each."""

from __future__ import annotations

import socket as unix_socket
from typing import Any

import zmq

from streamd.ipc.endpoint import socket_path


def open_dealer_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """A DEALER for one attempt. Credits bound its queue; ZMTP heartbeats would abort a busy trainer."""
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.setsockopt(zmq.IMMEDIATE, 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        dealer.connect(endpoint)
    except BaseException:
        dealer.close(0)
        raise
    return dealer


def has_socket_input(socket: zmq.Socket[bytes]) -> bool:
    """Whether something can be received; asking makes the socket's descriptor tell of news again."""
    events: Any = socket.getsockopt(zmq.EVENTS)
    return bool(events & zmq.POLLIN)


def is_socket_listening(endpoint: str) -> bool:
    """Whether a process listens at an ipc:// endpoint. Does not wait for its answer."""
    try:
        with unix_socket.socket(unix_socket.AF_UNIX, unix_socket.SOCK_STREAM | unix_socket.SOCK_NONBLOCK) as probe:
            probe.connect(str(socket_path(endpoint)))
    except BlockingIOError:  # others knock there already, and nobody lets them in
        return True
    except OSError:
        return False
    return True
