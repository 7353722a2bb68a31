"""Attacks by sessions: endless ones, too many, without reading, with false credit, with others' memory."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

import zmq
from target import Attack, Target
from wire import Intruder

from streamd.core.spec import Cursor, Segment
from streamd.ipc.endpoint import is_remote
from streamd.ipc.messages import AskStatus, BatchReady, Goodbye, Progress, ReceiptDue, StatusNow
from streamd.limits import MAX_CREDIT

_ENDLESS: Final = (1 << 64) - 1
_SLOT: Final = struct.Struct("<Q")
_SESSIONS: Final = 256
_AT_EPOCH_END: Final = 150
_GREEDY: Final = 50
_FETCHES: Final = 300  # more than a socket's buffer holds
_KEPT: Final = 64  # connections, before the attack begins again
_AWAITED: Final = 2  # digests of each round: the rest of them waits, and is dropped with its session
_DIGEST_S: Final = 50.0  # the most that a digest may take
_SENT_S: Final = 0.3  # until all batches of a credit are produced and sent
_PAUSE_S: Final = 0.05  # until the daemon has sent what it may send


def live_for_ever(target: Target) -> dict[str, int]:
    """Joins where the others are, for more epochs than there are, and has the status told."""
    admitted = target.intrude().subscribe(live=True, epochs=_ENDLESS)
    other = target.intrude()
    other.send(AskStatus())
    other.wait_for(StatusNow)
    target.drop_kept()
    return {"endless sessions": admitted}


def fetch_without_reading(target: Target) -> dict[str, int]:
    """Asks for the descriptor of a slot again and again, and reads none: they stay in flight."""
    if len(target.kept) >= _KEPT:
        target.drop_kept()
    intruder = target.intrude()
    if not intruder.subscribe(transport="shared", credit=2):
        return {"sessions refused": 1}
    lifeline = intruder.pair()
    slot = intruder.wait_for(BatchReady)[1].slot
    lifeline.setblocking(False)
    sent = 0
    for _ in range(_FETCHES):
        try:
            sent += lifeline.send(_SLOT.pack(slot)) > 0
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:  # the daemon has ended the session
            break
    return {"descriptors asked for": sent}


def leave_batches_unread(target: Target) -> dict[str, int]:
    """Has batches sent through the socket, reads none of them, says goodbye, and comes again."""
    if len(target.kept) >= _KEPT:
        target.drop_kept()
    intruder = target.intrude()
    if not intruder.subscribe("large", credit=MAX_CREDIT, transport="inline"):
        return {"sessions refused": 1}
    assert intruder.welcome is not None
    intruder.pair()
    time.sleep(_SENT_S)
    intruder.send(Goodbye())
    return {"sessions whose batches nobody reads": 1}


def end_epochs(target: Target) -> dict[str, int]:
    """Has 150 sessions at the end of an epoch each, every epoch another one."""
    target.drop_kept()
    admitted = []
    for _ in range(_AT_EPOCH_END):
        target.count += 1
        intruder = target.intrude()
        steps = intruder.ask_spec("large").batches - 1
        cursor = Cursor(target.count, (Segment(0, steps, 0, 1),))
        if intruder.subscribe("large", cursor=cursor, credit=2, resuming=True):
            intruder.pair()
            admitted.append(intruder)
    for intruder in admitted[:_AWAITED]:
        intruder.set_patience(_DIGEST_S)
        intruder.wait_for(ReceiptDue)
    return {"sessions at an epoch's end": len(admitted), "digests awaited": len(admitted[:_AWAITED])}


def take_all_sessions(target: Target) -> dict[str, int]:
    """Opens as many sessions as there are, and keeps them."""
    for each in list(target.kept):
        if each.welcome is None:
            each.close()
            target.kept.remove(each)
    opened = 0
    for _ in range(_SESSIONS - len(target.kept)):
        intruder = target.intrude()
        if not intruder.subscribe(credit=2, live=True):
            time.sleep(_PAUSE_S)
            return {"sessions taken": opened, "sessions refused": 1}
        if not is_remote(target.public):
            intruder.pair()
        opened += 1
    time.sleep(_PAUSE_S)
    return {"sessions taken": opened}


def hold_batches(target: Target) -> dict[str, int]:
    """Subscribes once, and holds all that it gets."""
    if target.kept:
        time.sleep(_PAUSE_S)
        return {}
    intruder = target.intrude()
    intruder.set_patience(10 * _PAUSE_S)
    if not intruder.subscribe(transport="shared", credit=16):
        target.drop_kept()
        return {"sessions refused": 1}
    intruder.pair()
    held = 0
    try:
        while held < MAX_CREDIT:
            intruder.wait_for(BatchReady)
            held += 1
    except zmq.Again:
        pass
    return {"batches held": held}


def report_thousands(target: Target) -> dict[str, int]:
    """Reports two thousand releases at a time of a session that has no batches."""
    intruder = target.kept[0] if target.kept else target.intrude()
    if intruder.welcome is None:
        if not intruder.subscribe(credit=2):
            target.drop_kept()
            return {"sessions refused": 1}
        intruder.pair()
    numbers = tuple(range(1, 2001))
    for _ in range(50):
        intruder.send(Progress(2, numbers, 0, 0, numbers))
    return {"reports of 2,000 numbers": 50}


def want_everything(target: Target) -> dict[str, int]:
    """Subscribes with numbers beyond all bounds: credit, group, ranks, epochs, positions."""
    wishes: list[dict[str, object]] = [
        {"credit": _ENDLESS},
        {"credit": -1},
        {"together": _ENDLESS},
        {"together": 256},
        {"rank": (1 << 20) - 2, "world": (1 << 20) - 1},
        {"world": _ENDLESS},
        {"cursor": Cursor((1 << 40) - 1)},
        {"cursor": Cursor(0, (Segment(0, 1 << 62, 0, 1),)), "resuming": True},
        {"cursor": Cursor(0, tuple(Segment(each, 1, 0, 1) for each in range(500))), "resuming": True},
        {"name": "x" * 40_000, "pid": 1 << 60, "batch_size": 1 << 60, "steps": _ENDLESS},
        {"earlier": tuple((each, each) for each in range(4000))},
    ]
    target.drop_kept()
    admitted = refused = 0
    for number in range(_GREEDY):
        intruder = target.intrude()
        for wish in (wishes[number % len(wishes)], {"credit": 2}):  # the second ends the first
            if intruder.subscribe(**wish):
                admitted += 1
            else:
                refused += 1
    return {"greedy subscriptions admitted": admitted, "greedy subscriptions refused": refused}


def lie_about_credit(target: Target) -> dict[str, int]:
    """Grants itself all deliveries there are, releases none, and reads on."""
    intruder = target.kept[0] if target.kept else target.intrude()
    if intruder.welcome is None:
        if not intruder.subscribe(transport="shared", credit=4):
            target.drop_kept()
            return {"sessions refused": 1}
        intruder.pair()
        intruder.set_patience(_PAUSE_S)
    intruder.send(Progress(_ENDLESS, (), 0, 0))
    intruder.send(Progress(1 << 62, (_ENDLESS, 1 << 60), _ENDLESS, -1))
    got = 0
    try:
        while True:
            intruder.wait_for(BatchReady)
            got += 1
    except zmq.Again:
        return {"batches beyond its credit": got, "lies": 2}


def write_to_slots(target: Target) -> dict[str, int]:
    """Tries to change the memory that it was given, and to get at it as one that may."""
    intruder = target.intrude()
    if not intruder.subscribe(transport="shared", credit=2):
        target.drop_kept()
        return {"sessions refused": 1}
    lifeline = intruder.pair()
    lifeline.send(_SLOT.pack(intruder.wait_for(BatchReady)[1].slot))
    _, [descriptor], *_ = socket.recv_fds(lifeline, _SLOT.size, 1)
    size = os.fstat(descriptor).st_size
    tries: list[Callable[[], object]] = [
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close(),
        lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        lambda: os.fchmod(descriptor, 0o666),
        lambda: os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)),
    ]
    written = 0
    for attempt in tries:
        try:
            attempt()
            written += 1
        except OSError:
            continue
    os.close(descriptor)
    target.drop_kept()
    return {"writes refused": len(tries) - written, "writes done": written}


def keep_mappings(target: Target) -> dict[str, int]:
    """Maps the batches of a session, ends its lifeline, keeps the mappings, and comes again."""
    intruder = Intruder(target.endpoint).connect()
    intruder.set_patience(10 * _PAUSE_S)
    if not intruder.subscribe(credit=2):
        intruder.close()
        time.sleep(_PAUSE_S)
        return {"sessions refused": 1}
    lifeline, mapped = intruder.pair(), 0
    intruder.send(Progress(2, (), 0, 0))
    while mapped < 2:
        lifeline.send(_SLOT.pack(intruder.wait_for(BatchReady)[1].slot))
        _, [descriptor], *_ = socket.recv_fds(lifeline, _SLOT.size, 1)
        memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        sum(memory[:: mmap.PAGESIZE])  # reads every page
        target.kept.append(memory)
        os.close(descriptor)
        mapped += 1
    intruder.close()
    return {"mappings kept after their session": mapped}


def fork_after_connecting(target: Target) -> dict[str, int]:
    """Has a child that keeps all connections, and speaks on them when its parent is gone."""
    child = os.fork()
    if child == 0:
        _leave_talking_child(target)
    os.waitpid(child, 0)
    return {"forked clients": 1}


def _leave_talking_child(target: Target) -> None:
    """Subscribes as a process that ends at once; its child talks on its lifeline."""
    intruder = Intruder(target.endpoint)
    try:
        intruder.connect()
        if intruder.subscribe(transport="shared", credit=4):
            lifeline = intruder.pair()
            slot = intruder.wait_for(BatchReady)[1].slot
            if os.fork() == 0:
                signal.alarm(2)
                time.sleep(_PAUSE_S)
                for word in (_SLOT.pack(slot), b"D" + _SLOT.pack(0), b"K" + _SLOT.pack(1 << 60), b"nonsense of it"):
                    lifeline.send(word)
                signal.pause()
    finally:
        os._exit(0)


ATTACKS: Final[tuple[Attack, ...]] = (
    end_epochs,
    fetch_without_reading,
    fork_after_connecting,
    keep_mappings,
    hold_batches,
    leave_batches_unread,
    lie_about_credit,
    live_for_ever,
    report_thousands,
    take_all_sessions,
    want_everything,
    write_to_slots,
)
