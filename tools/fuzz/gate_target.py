"""What a gate sends to the daemon, through the link that the daemon reads it with, as if a client had taken it over."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final, cast

from fuzz.mutations import INTERESTING, mutate
from fuzz.structures import edit_record_of
from fuzz.target import FuzzTarget, RunCase
from streamd.errors import ProtocolError
from streamd.ipc.messages import EMPTY_HEADER, AskStreams, Ping, decode_client_frame, encode_frame
from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink, split_client_frame

_HEAD: Final = struct.Struct("<IB")
_MAX_RECORDS: Final = 200  # of a case: mutations repeat records


def _build_record(kind: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body), kind) + body


def _make_seeds() -> list[bytes]:
    frames = [encode_frame(EMPTY_HEADER, each) for each in (AskStreams(), Ping())]
    records = [
        *(_build_record(RecordKind.FRAME, b"\x05ident" + each) for each in frames),
        _build_record(RecordKind.UNREACHABLE, b"ident"),
        _build_record(RecordKind.READY),
        _build_record(RecordKind.READY, b'{"port": 5555, "has_bbr": true}'),
        _build_record(RecordKind.WANTED, b"\xe8\x03\0\0"),
        _build_record(RecordKind.LOG, b'"a client sends frames that are too long"'),
        _build_record(RecordKind.FAILED, b'"cannot listen"'),
    ]
    return [*records, b"".join(records)]


def _split_records(data: bytes) -> list[bytes]:
    records, at = list[bytes](), 0
    while at < len(data) and len(records) < _MAX_RECORDS:
        start, at = at, len(data)
        if start + _HEAD.size <= len(data):
            at = min(at, start + _HEAD.size + int(_HEAD.unpack_from(data, start)[0]))
        records.append(data[start:at])
    return records


def _edit_record(rng: Random, record: bytes) -> bytes:
    """Changes the body of a record under a length that is right, its kind, or all of it."""
    body = record[_HEAD.size :]
    match rng.randrange(4):
        case 0:
            return mutate(rng, record, record)
        case 1:
            return _HEAD.pack(len(body), rng.randrange(256)) + body
        case 2:
            return _HEAD.pack(rng.choice(INTERESTING) % (1 << 32), rng.randrange(10)) + body
        case _:
            kind = record[_HEAD.size - 1] if len(record) >= _HEAD.size else 0
            return _build_record(kind, mutate(rng, body, record))


async def _run_records(data: bytes) -> tuple[int, str]:
    """Sends the bytes over a link, and decodes the frames among them, as the dispatcher does."""
    kinds, closed = list[str](), asyncio.Event()
    daemon_end, gate_end = socket.socketpair()
    gate_end.setblocking(False)
    callbacks = LinkCallbacks(lambda kind, body: kinds.append(_read_record(kind, body)), closed.set)
    await RecordLink.open(daemon_end, callbacks, is_of_gate=True)
    with gate_end, suppress(ConnectionError):  # the link was closed before all was sent
        await asyncio.get_running_loop().sock_sendall(gate_end, data)
    await closed.wait()
    return max(1, len(kinds)), " ".join(kinds[:6])


def _read_record(kind: RecordKind, body: bytes) -> str:
    if kind is not RecordKind.FRAME:
        return kind.name
    try:
        return type(decode_client_frame(split_client_frame(body)[1])[1]).__name__
    except ProtocolError as error:
        return type(error).__name__


@contextmanager
def _open_link() -> Iterator[RunCase]:
    with asyncio.Runner() as runner:
        faults = list[BaseException]()
        runner.get_loop().set_exception_handler(lambda _, context: faults.append(_find_error(context)))

        def run_case(data: bytes) -> tuple[int, str]:
            done = runner.run(_run_records(data))
            if faults:
                raise faults.pop()
            return done

        yield run_case


def _find_error(context: Mapping[str, Any]) -> BaseException:
    return cast("BaseException", context.get("exception") or RuntimeError(str(context.get("message"))))


TARGETS: Final = {
    "gate_records": FuzzTarget(
        "gate_records",
        "records of a gate, as the daemon's link reads them",
        _make_seeds,
        _open_link,
        edit=edit_record_of(_split_records, b"".join, _edit_record),
        edit_share=1,
        unit="records",
    )
}
