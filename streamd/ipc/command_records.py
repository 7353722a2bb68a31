"""Receives the daemon's commands in a process that fills slots: a worker, or the bridge to a cluster."""

from __future__ import annotations

import socket

from streamd.ipc.frames import split_records
from streamd.ipc.worker_messages import MAX_GROUP_RECORDS, MAX_RECORD_BYTES


def receive_command_records(link: socket.socket) -> tuple[list[bytes], list[int]] | None:
    """Receives one datagram: its records, and the descriptors of slots, which the caller owns.

    Returns None if none waits, and no records at all once the daemon has closed its end.
    """
    try:
        data, descriptors, _, _ = socket.recv_fds(link, MAX_RECORD_BYTES, MAX_GROUP_RECORDS)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return [], []
    return (split_records(data) if data else []), descriptors
