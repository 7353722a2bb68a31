"""Commands go by the datagram, with the descriptors of slots; they wait for room, until an end is closed."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from streamd.ipc.messages import bundle_records
from streamd.ipc.slots import DatagramSender, receive_command_records


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


# --- datagrams that wait for room

DATAGRAMS = 2000  # of 1 KiB: ten times what the socket holds


async def test_datagrams_that_find_no_room_arrive_in_order_with_descriptors_that_were_closed_since(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    ours.setblocking(False)
    counts: list[int] = []
    sender = DatagramSender(ours, on_closed=pytest.fail, on_waiting=counts.append)
    sent = [number.to_bytes(4, "big") * 256 for number in range(DATAGRAMS)]
    lent = os.memfd_create("lent")
    inode = os.fstat(lent).st_ino
    for data in sent:
        sender.send(data, [lent] if data == sent[-1] else [])
    sender.copy_descriptors()
    sender.copy_descriptors()
    os.close(lent)
    assert counts == [1]

    came: list[bytes] = []
    arrived, loop = asyncio.Event(), asyncio.get_running_loop()

    def receive() -> None:
        data, descriptors, _, _ = socket.recv_fds(theirs, 1 << 16, 1)
        came.append(data)
        if descriptors:
            assert os.fstat(descriptors[0]).st_ino == inode
            os.close(descriptors[0])
            arrived.set()

    loop.add_reader(theirs, receive)
    await asyncio.wait_for(arrived.wait(), 10)
    loop.remove_reader(theirs)
    assert came == sent
    assert counts[-1] == 0
    sender.send(b"after")
    assert receive_command_records(theirs) == ([b"after"], [])


async def test_what_waits_is_dropped_when_the_other_end_is_gone_and_when_the_sender_is_closed() -> None:
    for is_gone in (True, False):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        closed = asyncio.Event()
        sender = DatagramSender(ours, on_closed=closed.set)
        lent = os.memfd_create("lent")
        with ours, theirs:
            for _ in range(DATAGRAMS):
                sender.send(bytes(1024), [lent])
            sender.copy_descriptors()
            os.close(lent)
            if is_gone:
                theirs.close()
                await asyncio.wait_for(closed.wait(), 10)
                sender.send(b"to nobody")
            sender.close()
