"""Records between daemon and worker round-trip and fit a datagram; damage raises ProtocolError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sample_specs import SPEC

from streamd.core.receipt import DigestPiece
from streamd.core.sampler import BadSample, SampleOrder
from streamd.core.spec import LabelSpec, Segment
from streamd.core.status import ClusterStatus, NodeStatus
from streamd.errors import ConfigError, ProtocolError
from streamd.ipc.worker_messages import (
    GROUP_RESULT,
    MAX_RECORD_BYTES,
    AddUpDigest,
    CachePlace,
    ClassPixels,
    CloseStream,
    ClusterChanged,
    DrawThumbnail,
    FillRows,
    GroupResult,
    InspectRows,
    OpenStream,
    SampleFault,
    StreamOpenFailed,
    StreamReady,
    StreamRemark,
    TaskDone,
    TaskResult,
    TransformFault,
    TransformPlace,
    UnmapSlots,
    WorkerCommand,
    WorkerDied,
    WorkerReport,
    decode_command,
    decode_report,
    encode_command,
    encode_report,
    format_error_reason,
    join_result,
    split_result,
)
from streamd.limits import MAX_BATCH_ROWS, MAX_REASON_CHARS, MAX_SLOTS, TASK_ROWS

Record = WorkerCommand | WorkerReport


def task(rows: list[int], ids: list[int], batch_rows: int = MAX_BATCH_ROWS) -> FillRows:
    return FillRows(
        2**60, 2**31, 2**61, 2**40, batch_rows, np.array(rows, dtype=np.uint16), np.array(ids, dtype=np.int64)
    )


COMMANDS: Final[list[WorkerCommand]] = [
    OpenStream(2, "/var/lib/streamd/träin.manifest", SPEC),
    OpenStream(3, "/m", SPEC, CachePlace("/var/cäche", 2**40, writable=True)),
    OpenStream(4, "/m", SPEC, None, TransformPlace("augment", "flip", "/etc/ströme", "d" * 32)),
    OpenStream(4, "/m", SPEC, None, TransformPlace("augment", "flip", "/etc", "d" * 32, by_name=True)),
    task([0], [5]),
    task([1, 2, MAX_BATCH_ROWS - 1], [2**62, 0, 7]),
    task(list(range(TASK_ROWS)), list(range(100, 100 + TASK_ROWS))),
    CloseStream(2**31),
    UnmapSlots((1, 2, 2**63)),
    UnmapSlots(()),
    InspectRows(3, [2**62, 0], [0]),
    AddUpDigest(DigestPiece(SampleOrder(9, 2, 5, "full", 2**62), True, "f" * 32, 2**40, (Segment(0, 5, 0, 1),))),
    DrawThumbnail(0, 2**62),
]
REPORTS: Final[list[WorkerReport]] = [
    StreamReady(3, "f" * 32),
    TaskDone(7, 1, 2, 3),
    TaskDone(
        2**63, 2**50, 2**50, 2**50, (BadSample(9, "cut short", lasting=True), BadSample(2**62, "é", lasting=False))
    ),
    TaskDone(8, 1, 2, 3, gathered=32, waited_ns=2**50),
    TaskDone(9, 1, 2, 3, unfit="an image of float64 comes back"),
    TaskDone(9, 1, 2, 3, (BadSample(9, "cut short", lasting=True),), unfit="an image of float64 comes back"),
    StreamOpenFailed(3, "the folder is gone"),
    StreamRemark(2**31, "the cache is fül"),
    WorkerDied("killed by SIGSEGV", (7, 2**62), 7, 31, "crashes its decoder: SIGSEGV"),
    ClusterChanged(ClusterStatus("head:6379", "away", (NodeStatus("a", "refused", 2, 3, 4.5, "its data"),))),
    TaskResult(bytes(range(256)), is_last=True),
    WorkerDied("out of memory", transform_fault=TransformFault(2, "ends its process", is_certain=False)),
]
RECORDS: Final[list[Record]] = [*COMMANDS, *REPORTS]
BOTH: Final[list[Callable[[bytes], Any]]] = [decode_command, decode_report]


def named(record: object) -> str:
    return type(record).__name__


def plain(record: Record) -> object:
    """A record as a value that can be compared; a FillRows holds arrays."""
    if not isinstance(record, FillRows):
        return record
    fields = {name: getattr(record, name) for name in FillRows.__struct_fields__}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


def encoded(record: Record) -> bytes:
    return encode_command(record) if isinstance(record, WorkerCommand) else encode_report(record)


def decoder_of(record: Record) -> Callable[[bytes], Any]:
    return decode_command if isinstance(record, WorkerCommand) else decode_report


def must_be_record_or_error(decode: Callable[[bytes], Any], data: bytes) -> None:
    try:
        record = decode(data)
    except ProtocolError:
        return
    # Compared as text, since a flipped byte may make a NaN, which does not equal itself.
    assert repr(plain(decode(encoded(record)))) == repr(plain(record))


def test_there_is_an_example_of_every_record() -> None:
    assert {type(record) for record in COMMANDS} == set(get_args(WorkerCommand))
    assert {type(record) for record in REPORTS} == set(get_args(WorkerReport))


@pytest.mark.parametrize("record", RECORDS, ids=named)
def test_every_record_round_trips(record: Record) -> None:
    assert plain(decoder_of(record)(encoded(record))) == plain(record)


def test_arrays_that_are_not_contiguous_keep_types_and_values() -> None:
    rows, ids = np.arange(20, dtype=np.uint16), np.arange(20, dtype=np.int64)
    got = decode_command(encode_command(FillRows(1, 0, 2, 4096, 20, rows[::2], ids[::-2])))
    assert isinstance(got, FillRows)
    assert (got.rows.dtype, got.ids.dtype) == (np.dtype(np.uint16), np.dtype(np.int64))
    assert got.rows.tolist() == list(range(0, 20, 2))
    assert got.ids.tolist() == list(range(19, 0, -2))


def test_the_largest_records_fit_a_datagram() -> None:
    worst = "\U0001f600" * MAX_REASON_CHARS
    bad = tuple(BadSample(2**62, worst, lasting=True) for _ in range(TASK_ROWS))
    assert len(encode_report(TaskDone(2**63, 2**63, 2**63, 2**63, bad))) <= MAX_RECORD_BYTES
    assert len(encode_command(UnmapSlots(tuple(range(MAX_SLOTS))))) <= MAX_RECORD_BYTES
    assert len(encode_command(task(list(range(TASK_ROWS)), list(range(TASK_ROWS))))) < 1024


# --- damage


@pytest.mark.parametrize("record", [one for one in RECORDS if one != UnmapSlots((1, 2, 2**63))], ids=named)
def test_every_truncation_is_refused(record: Record) -> None:
    data = encoded(record)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decoder_of(record)(data[:end])


def test_a_truncated_list_of_slots_is_refused_unless_cut_between_slots() -> None:
    data = encode_command(UnmapSlots((1, 2, 3)))
    for end in range(1, len(data)):
        if (end - 1) % 8:
            with pytest.raises(ProtocolError):
                decode_command(data[:end])
        else:
            assert decode_command(data[:end]) == UnmapSlots((1, 2, 3)[: end // 8])


@pytest.mark.parametrize("record", RECORDS, ids=named)
def test_anything_after_a_record_is_refused(record: Record) -> None:
    with pytest.raises(ProtocolError):
        decoder_of(record)(encoded(record) + b"\x00")


@pytest.mark.long
@pytest.mark.parametrize("record", [*COMMANDS[3:5], *COMMANDS[6:], *REPORTS], ids=named)
def test_every_flipped_bit_gives_an_error_or_a_record(record: Record) -> None:
    data = bytearray(encoded(record))
    for place in range(len(data)):
        was = data[place]
        for value in {0, 255, *(was ^ 1 << bit for bit in range(8))}:
            data[place] = value
            must_be_record_or_error(decoder_of(record), bytes(data))
        data[place] = was


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=500)
@given(st.integers(0, 7), st.binary(max_size=120), st.sampled_from(BOTH))
def test_random_bytes_after_a_known_kind_give_an_error_or_a_record(
    kind: int, data: bytes, decode: Callable[[bytes], Any]
) -> None:
    must_be_record_or_error(decode, bytes([kind]) + data)


@pytest.mark.parametrize("decode", BOTH)
@pytest.mark.parametrize("data", [b"", b"\x00", b"\x06", b"\xff" * 40], ids=repr)
def test_unknown_kinds_and_empty_records_are_refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@pytest.mark.parametrize("record", RECORDS, ids=named)
def test_a_record_of_the_other_side_is_refused(record: Record) -> None:
    other = decode_report if isinstance(record, WorkerCommand) else decode_command
    with pytest.raises(ProtocolError, match="unknown kind"):
        other(encoded(record))


@pytest.mark.parametrize("decode", BOTH)
@pytest.mark.parametrize("kind", [1, 4])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81", b"\x81\xa1x"])
def test_deep_nesting_is_refused(decode: Callable[[bytes], Any], kind: int, opening: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(bytes([kind]) + b"\x81\xa5other" + opening * 20_000)


def test_text_that_is_not_utf8_is_refused() -> None:
    ready = encode_report(StreamReady(1, "ab"))
    with pytest.raises(ProtocolError):
        decode_report(ready.replace(b"ab", b"\xff\xfe"))
    opened = encode_command(OpenStream(1, "/manifest", SPEC))
    with pytest.raises(ProtocolError):
        decode_command(opened.replace(b"/manifest", b"\xff" * 9))


@pytest.mark.parametrize("rows", [0, TASK_ROWS + 1])
def test_a_task_without_rows_or_with_too_many_is_refused(rows: int) -> None:
    with pytest.raises(ProtocolError, match=f"a task of {rows} rows"):
        decode_command(encode_command(task(list(range(rows)), list(range(rows)))))


def test_a_count_of_bad_rows_that_differs_from_those_named_is_refused() -> None:
    data = bytearray(encode_report(REPORTS[2]))
    data[2] = 1
    with pytest.raises(ProtocolError, match="1 bad rows names 2"):
        decode_report(bytes(data))


# --- reasons


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("cut  short\n at\tbyte 7"), "cut short at byte 7"),
        (MemoryError(), "MemoryError"),
        (ValueError(" \n "), "ValueError"),
        (OSError(5, "Input/output error", "a.jpg"), "[Errno 5] Input/output error: 'a.jpg'"),
        (ValueError("no \udcff here"), r"no \udcff here"),
    ],
)
def test_a_reason_is_the_error_text_on_one_line(error: Exception, says: str) -> None:
    assert format_error_reason(error) == says


@settings(derandomize=True, deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=500))
def test_any_reason_is_bounded_and_can_be_sent(text: str) -> None:
    reason = format_error_reason(ValueError(text))
    assert 0 < len(reason) <= MAX_REASON_CHARS
    assert "\n" not in reason
    done = TaskDone(1, 0, 0, 0, (BadSample(1, reason, lasting=True),))
    assert decode_report(encode_report(done)) == done


def test_a_stream_of_more_labels_than_a_record_holds_is_refused_by_name() -> None:
    labels = {f"label_{number}": LabelSpec(f"label_{number}", "float") for number in range(2000)}
    with pytest.raises(
        ConfigError, match=r"streams\.train\.labels: 2000 labels .* combine similar columns into one label"
    ):
        encode_command(OpenStream(1, "/state/train.manifest", replace(SPEC, labels=labels)))


def test_a_transform_by_name_is_another_version_of_the_same_source() -> None:
    one, several = (TransformPlace("m", "f", "/", "d", by_name=by_name) for by_name in (False, True))
    assert one.source_version != several.source_version


def test_a_result_that_is_larger_than_a_record_travels_in_parts() -> None:
    result = GroupResult(2, [0, 2**62], faults=[SampleFault(0, "cut short é", "verdict")])
    assert join_result([each.part for each in split_result(result)], GROUP_RESULT) == result
    result.class_pixels["mask"] = ClassPixels(32, dict.fromkeys(range(65_536), 2**40))
    parts = list(split_result(result))
    assert [each.is_last for each in parts] == [False] * (len(parts) - 1) + [True]
    assert max(len(encode_report(each)) for each in parts) <= MAX_RECORD_BYTES
    assert join_result([each.part for each in parts], GROUP_RESULT) == result
    with pytest.raises(ProtocolError, match="damaged result"):
        join_result([each.part for each in parts[1:]], GROUP_RESULT)
