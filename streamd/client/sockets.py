"""The sockets of a client: each attempt opens a new one, and each is used by one thread."""

from __future__ import annotations

import socket as unix_socket
from typing import Any

import zmq

from streamd.ipc.endpoint import socket_path


def open_dealer_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """Opens a DEALER for one attempt to reach the daemon.

    Its queue has no limit of its own, since credit bounds it. ZMTP heartbeats are off: they would disconnect a busy
    trainer.
    """
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
    """Returns whether a message can be received. Reading the events also re-arms the socket's descriptor."""
    events: Any = socket.getsockopt(zmq.EVENTS)
    return bool(events & zmq.POLLIN)


def is_socket_listening(endpoint: str) -> bool:
    """Returns whether a process listens at an ipc:// endpoint, without waiting for an answer."""
    try:
        with unix_socket.socket(unix_socket.AF_UNIX, unix_socket.SOCK_STREAM | unix_socket.SOCK_NONBLOCK) as probe:
            probe.connect(str(socket_path(endpoint)))
    except BlockingIOError:  # the listener's backlog is full, so something listens
        return True
    except OSError:
        return False
    return True
