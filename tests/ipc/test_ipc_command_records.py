"""Commands arrive by the datagram, with the descriptors of slots, until the daemon closes its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from streamd.ipc.command_records import receive_command_records
from streamd.ipc.frames import bundle_records


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def test_the_records_of_one_datagram_come_together_with_their_descriptors(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    socket.send_fds(ours, [bundle_records([b"one", b"two"])], [ours.fileno()])
    ours.send(bundle_records([b"three"]))

    received = receive_command_records(theirs)

    assert received is not None
    records, [descriptor] = received
    assert records == [b"one", b"two"]
    assert os.fstat(descriptor).st_ino == os.fstat(ours.fileno()).st_ino
    os.close(descriptor)
    assert receive_command_records(theirs) == ([b"three"], [])


def test_without_a_datagram_there_is_nothing_and_after_the_end_there_are_no_records(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    assert receive_command_records(theirs) is None
    ours.close()
    assert receive_command_records(theirs) == ([], [])
