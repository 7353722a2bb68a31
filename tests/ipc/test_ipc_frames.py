"""Every message round-trips; every damaged frame is a ProtocolError or another valid message, never anything else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product
from typing import Any, Final, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_specs import SPEC, some_spec

from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.sampler import BadRow
from streamd.core.spec import Cursor, Segment
from streamd.core.status import DaemonStatus, SessionStatus, StreamStatus
from streamd.errors import ProtocolError
from streamd.ipc.messages import (
    EMPTY_HEADER,
    MAGIC,
    VERSION,
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    BatchReady,
    ClientMessage,
    CreditNow,
    DaemonMessage,
    Draining,
    FrameHeader,
    Goodbye,
    MonitorAt,
    Names,
    NoSession,
    Ping,
    Pong,
    Progress,
    ReceiptDue,
    ReceiptSeen,
    Refused,
    SlotsGone,
    Stats,
    StatusNow,
    Stopped,
    Streams,
    Subscribe,
    Welcome,
    build_frame,
    bundle_records,
    decode_client_frame,
    decode_daemon_frame,
    encode_frame,
    encode_message,
    split_records,
)
from streamd.limits import MAX_CLIENT_FRAME_BYTES, MAX_COUNT, MAX_CREDIT, MAX_NAMES, MAX_SEGMENTS, MAX_SESSIONS

TIMING: Final = EpochTiming(3, 43.0, 2.0, "none", BatchSupply(70, 30, 2.5, 0.5, 0.75))
CURSOR: Final = Cursor(4, (Segment(0, 2, 1, 3), Segment(6, 1, 0, 2)))
STATUS: Final = DaemonStatus(
    *("0.1.0", 77, "ipc:///s", 12.5, 2, 0.25, 1 << 30, 1 << 20),
    draining=False,
    streams=(StreamStatus("train", 103, 10, 11, 2, 1.5, 15.0, None, 1, 2, 0, "a remedy"),),
    sessions=(SessionStatus(5, "train", 0, 2, 3, None, 4, 5, 8, 2, "reading", 15.0, 7.5, TIMING),),
)
BAD: Final = BadRow(3, 77, "cat/ü.jpg", "cut short", "substituted")
EXAMPLES: Final[list[ClientMessage | DaemonMessage]] = [
    AskStreams(),
    AskStats(),
    Subscribe("train", 1, 3, 5, CURSOR, "drop", 8, "shared", SPEC.order_id, resuming=True),
    Subscribe("tränen", 0, 1, None, Cursor(), "pad", 2, "inline", None, resuming=False),
    Subscribe("train", 0, 1, 2, Cursor(3, (), 40), "drop", 8, "shared", None, resuming=False, live=True, together=4),
    Subscribe(
        "train", 0, 1, 2, CURSOR, "drop", 8, "shared", None, False, name="lr-0.01", pid=77, batch_size=5, steps=22
    ),
    Progress(12, (3, 5, 2**40), 7, 10**12),
    Progress(0, (), 0, 0),
    Progress(2, (0, 1), 2, 5, (1,)),
    ReceiptSeen(3, "ab" * 16, ok=True),
    ReceiptSeen(3, "ab" * 16, ok=True, timing=TIMING),
    Goodbye(),
    AskNames("train", (0, 5, 2**40)),
    AskStatus(),
    AskMonitor(),
    Ping(),
    Streams({"train": SPEC, "validation": some_spec(labels={}, normalize="unit", shuffle="none")}),
    Streams({}),
    Stats({"decode": {"rows": 3.0, "busy_s": 0.25}, "empty": {}}),
    Welcome(b"\x00\xff" * 8, SPEC, 8, "shared"),
    Welcome(b"\x00\xff" * 8, SPEC, 8, "shared", Cursor(3, (), 40)),
    Refused("memory", "8 slots of 4 MiB are over 16 MiB", 2.5),
    Refused("unknown", "no stream 'x'"),
    BatchReady(1, 2, 32, 9, 1 << 20, inline=False),
    BatchReady(1 << 40, 1 << 40, 65536, 1 << 60, 1 << 40, inline=True, bad=(BAD, BAD)),
    ReceiptDue(1, "0" * 32, 7),
    ReceiptDue(1, "0" * 32, 7, TIMING.supply),
    SlotsGone((1, 2, 3)),
    Stopped("too many bad samples", changed=False),
    Draining(),
    Names(("cat/ü.jpg", "")),
    StatusNow(STATUS),
    Pong(7, 15, 6, 1, paused=True),
    NoSession(),
    CreditNow(3),
    MonitorAt("http://127.0.0.1:9191", "secret"),
]
FROM_CLIENT: Final = [message for message in EXAMPLES if isinstance(message, ClientMessage)]
FROM_DAEMON: Final = [message for message in EXAMPLES if isinstance(message, DaemonMessage)]
HEADER: Final = FrameHeader(2**64 - 1, 7, 2**40)
SIZE: Final = len(build_frame(EMPTY_HEADER, b""))

Unpack = Callable[[bytes], tuple[FrameHeader, Any]]
BOTH: Final[list[Unpack]] = [decode_client_frame, decode_daemon_frame]


def unpack_of(message: ClientMessage | DaemonMessage) -> Unpack:
    return decode_client_frame if isinstance(message, ClientMessage) else decode_daemon_frame


def named(message: object) -> str:
    return type(message).__name__


def must_be_message_or_error(unpack: Unpack, data: bytes) -> None:
    try:
        header, message = unpack(data)
    except ProtocolError:
        return
    assert unpack(encode_frame(header, message)) == (header, message)


# --- whole frames


def test_there_is_an_example_of_every_message() -> None:
    assert {type(message) for message in EXAMPLES} == set(get_args(ClientMessage)) | set(get_args(DaemonMessage))


@pytest.mark.parametrize("message", EXAMPLES, ids=named)
def test_every_message_round_trips(message: ClientMessage | DaemonMessage) -> None:
    assert unpack_of(message)(encode_frame(HEADER, message)) == (HEADER, message)


def test_the_encoding_of_a_frame_is_unchanged() -> None:
    data = encode_frame(FrameHeader(1, 2, 3), Progress(4, (5,), 6, 7))
    assert (
        data.hex()
        == "73640a00" + "0100000000000000" + "0200000000000000" + "0300000000000000" + "960404910506" + "0790"
    )


def test_the_largest_client_messages_fit_a_client_frame() -> None:
    history = tuple(Segment(base, 1 << 39, 1 << 19, (1 << 20) - 1) for base in range(1 << 60, (1 << 60) + MAX_SEGMENTS))
    subscribe = Subscribe(
        "s" * 255, 0, 1, 1 << 39, Cursor(1 << 39, history), "drop", MAX_CREDIT, "shared", "f" * 32, True
    )
    names = AskNames("s" * 255, tuple(range(1 << 62, (1 << 62) + MAX_NAMES)))
    all_leases = tuple(range(MAX_COUNT - MAX_CREDIT, MAX_COUNT))
    progress = Progress(MAX_COUNT, all_leases, MAX_COUNT, MAX_COUNT, all_leases)
    held_over = tuple((1 << 62, 1 << 62) for _ in range(MAX_SESSIONS))
    resumed = msgspec.structs.replace(subscribe, earlier=held_over)
    for message in (subscribe, resumed, progress, names, Goodbye(all_leases)):
        assert decode_client_frame(encode_frame(HEADER, message)) == (HEADER, message)


# --- damage


@pytest.mark.parametrize("message", EXAMPLES, ids=named)
def test_every_truncation_is_refused(message: ClientMessage | DaemonMessage) -> None:
    data = encode_frame(HEADER, message)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            unpack_of(message)(data[:end])


@pytest.mark.parametrize("message", EXAMPLES, ids=named)
def test_anything_after_a_message_is_refused(message: ClientMessage | DaemonMessage) -> None:
    for tail in (b"\x00", b"\xc0", encode_frame(HEADER, message)):
        with pytest.raises(ProtocolError):
            unpack_of(message)(encode_frame(HEADER, message) + tail)


SMALL: Final = [message for message in EXAMPLES if len(encode_message(message)) < 150]


@pytest.mark.long
@pytest.mark.parametrize("message", SMALL, ids=named)
def test_every_flipped_byte_gives_an_error_or_a_message(message: ClientMessage | DaemonMessage) -> None:
    data = bytearray(encode_frame(HEADER, message))
    for place in range(len(data)):
        was = data[place]
        for value in range(256):
            data[place] = value
            must_be_message_or_error(unpack_of(message), bytes(data))
        data[place] = was


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.binary(max_size=200), st.sampled_from(BOTH))
def test_random_bytes_after_a_valid_header_give_an_error_or_a_message(data: bytes, unpack: Unpack) -> None:
    must_be_message_or_error(unpack, build_frame(HEADER, data))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from(BOTH))
def test_random_frames_are_refused(data: bytes, unpack: Unpack) -> None:
    if data[:3] != MAGIC + bytes([VERSION]):
        with pytest.raises(ProtocolError):
            unpack(data)


VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.sampled_from([*range(1, 8), *range(65, 75)]), st.lists(VALUES, max_size=10), st.sampled_from(BOTH))
def test_random_fields_under_a_known_tag_give_an_error_or_a_message(
    tag: int, fields: list[Any], unpack: Unpack
) -> None:
    try:
        _, message = unpack(build_frame(HEADER, msgspec.msgpack.encode([tag, *fields])))
    except ProtocolError:
        return
    assert type(message).__struct_config__.tag == tag


@pytest.mark.parametrize("unpack", BOTH)
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "shorter than its header"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not streamd"),
        (encode_frame(EMPTY_HEADER, Goodbye()).replace(MAGIC, b"ds"), "not streamd"),
        (MAGIC + bytes([VERSION + 1]) + encode_frame(EMPTY_HEADER, Goodbye())[3:], "install the same streamd"),
        (MAGIC + b"\x00" + encode_frame(EMPTY_HEADER, Goodbye())[3:], "install the same streamd"),
    ],
    ids=["empty", "http", "magic", "newer", "older"],
)
def test_a_foreign_frame_is_refused_and_the_message_says_why(unpack: Unpack, data: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        unpack(data)


def test_a_frame_of_another_version_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ProtocolError, match="version 11"):
        decode_daemon_frame(MAGIC + b"\x0b" + bytes(SIZE - 3) + b"\xc1" * 50)


def test_a_clients_frame_over_the_limit_is_refused_before_it_is_parsed() -> None:
    longest = build_frame(HEADER, b"\xc1" * (MAX_CLIENT_FRAME_BYTES - SIZE))
    with pytest.raises(ProtocolError, match="makes no sense"):
        decode_client_frame(longest)
    with pytest.raises(ProtocolError, match=f"over {MAX_CLIENT_FRAME_BYTES}"):
        decode_client_frame(longest + b"\xc1")


def test_a_daemon_frame_may_exceed_the_limit_of_client_frames() -> None:
    message = SlotsGone(tuple(range(2**33, 2**33 + 20_000)))
    data = encode_frame(HEADER, message)
    assert len(data) > MAX_CLIENT_FRAME_BYTES
    assert decode_daemon_frame(data) == (HEADER, message)


@pytest.mark.parametrize("message", EXAMPLES, ids=named)
def test_a_message_of_the_other_side_is_refused(message: ClientMessage | DaemonMessage) -> None:
    other = decode_daemon_frame if isinstance(message, ClientMessage) else decode_client_frame
    with pytest.raises(ProtocolError, match="makes no sense"):
        other(encode_frame(HEADER, message))


@pytest.mark.parametrize(
    "start",
    [b"", b"\x95\x04\x00", b"\x92\x41", b"\x92\x42", b"\x9b\x03\xa1x\x00\x01\xc0\x82\xa5epoch\x00\xa5other"],
    ids=["bare", "released", "streams", "stats", "cursor's unknown field"],
)
def test_deep_nesting_is_refused(start: bytes) -> None:
    for unpack, opening in product(BOTH, (b"\x91", b"\x81", b"\x81\xa1x")):
        with pytest.raises(ProtocolError):
            unpack(build_frame(HEADER, start + opening * 20_000))


@pytest.mark.parametrize("kind", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"])
def test_a_length_larger_than_the_frame_allocates_no_memory(kind: bytes) -> None:
    for unpack, start in product(BOTH, (b"", b"\x95\x04\x00", b"\x92\x41", b"\x92\x47")):
        with pytest.raises(ProtocolError):
            unpack(build_frame(HEADER, start + kind + struct.pack(">I", 2**32 - 1)))


@pytest.mark.parametrize(
    "fields",
    [
        [4, 0, [], 0],
        [4, 0, [], 0, 0, 0],
        [4, 0, ["1"], 0, 0],
        [4, 0, [1.5], 0, 0],
        [4, None, [], 0, 0],
        [4, True, [], 0, 0],
    ],
    ids=str,
)
def test_missing_additional_and_wrong_fields_are_refused(fields: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decode_client_frame(build_frame(HEADER, msgspec.msgpack.encode(fields)))


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_client_frame(build_frame(HEADER, b"\x94\x05\x00\xa2\xff\xfe\xc3"))


# --- records in company: what comes out is what went in, and what is damaged is refused

RECORD: Final = st.binary(min_size=1, max_size=40).filter(lambda record: record[0] != 8)


@settings(deadline=None)
@given(st.lists(RECORD, min_size=1, max_size=9))
def test_a_bundle_holds_its_records_in_order(records: list[bytes]) -> None:
    assert split_records(bundle_records(records)) == records


def test_a_single_record_is_not_wrapped_in_a_bundle() -> None:
    assert bundle_records([b"one"]) == b"one"
    assert split_records(b"one") == [b"one"]


@settings(deadline=None)
@given(st.lists(RECORD, min_size=2, max_size=5), st.data())
def test_a_bundle_cut_within_a_record_is_refused(records: list[bytes], data: st.DataObject) -> None:
    whole = bundle_records(records)
    ends = {len(bundle_records(records[:count])) + (5 if count == 1 else 0) for count in range(1, len(records) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda at: at not in ends))

    with pytest.raises(ProtocolError, match="a bundle of"):
        split_records(whole[:cut])


def test_an_empty_bundle_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a bundle of 0 records"):
        split_records(b"\x08")
