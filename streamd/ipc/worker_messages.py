"""Records between daemon and worker: fixed, binary, on the datagrams of their socket pair; descriptors ride along.

What is said in one breath goes in one datagram: to wake a process costs as much as several records.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.spec import StreamSpec, compute_identity
from streamd.errors import ConfigError, ProtocolError
from streamd.limits import MAX_REASON_CHARS, TASK_ROWS

RowNumbers = npt.NDArray[np.uint16]
_ROW: Final = np.dtype("<u2")
_ID: Final = np.dtype("<i8")

_STREAM, _TASK, _DROP, _READY, _DONE, _CLOSE, _UNOPENED, _REMARK = 1, 2, 3, 4, 5, 6, 7, 9
# Kind, rows of the task, stream, number, slot, slot bytes, rows of the batch, epoch.
_TASK_HEAD: Final = struct.Struct("<BxHIQQQIxxxxQ")
_CLOSE_RECORD: Final = struct.Struct("<BxxxI")  # kind, stream
# Kind, unfit, bad and gathered rows, number, read, decode, idle, waited nanoseconds.
_DONE_HEAD: Final = struct.Struct("<B?HHxxQQQQQ")
MAX_RECORD_BYTES: Final = 64 * 1024
MAX_GROUP_RECORDS: Final = 16  # records of a datagram
TRANSFORM_RAISED: Final = "transform raised"  # how the reason of a bad sample begins whose file is not to blame
_DAMAGE: Final = (struct.error, msgspec.MsgspecError, ValueError, IndexError, RecursionError)  # what decoding may raise


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where a stream's decoded samples are kept, in `max_bytes` at most (None: no bound), and whether any are added."""

    folder: str
    max_bytes: int | None
    writable: bool = False


@dataclass(frozen=True, slots=True)
class TransformPlace:
    """Where a stream's transform is: `function` of `module`, in `folder` or installed. `digest` is of its source."""

    module: str
    function: str
    folder: str
    digest: str

    @property
    def source_version(self) -> str:
        """Tells this function as it is written now from every other."""
        return compute_identity("streamd transform 1", self.function, self.digest)


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Know a stream by `number` from now on: its manifest lies at `manifest`.

    `away`: its data are not there, or do not answer. They are left alone until a task wants them.
    """

    number: int
    manifest: str
    spec: StreamSpec
    cache: CachePlace | None = None
    transform: TransformPlace | None = None
    away: bool = False


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Forget a stream; no task of it is under way, and its number is never used again."""

    number: int


class FillRows(msgspec.Struct, frozen=True, eq=False):
    """Fill `rows` of a batch of `batch_rows` in `slot` with samples `ids`. A new slot's descriptor comes with it.

    `epoch` is the batch's: what is drawn by chance for a sample is drawn anew in each.
    """

    number: int
    stream: int
    slot: int
    slot_bytes: int
    batch_rows: int
    rows: RowNumbers
    ids: Ids
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class UnmapSlots:
    """Unmap these slots."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamReady:
    """The worker has opened a stream and its pipeline makes `pixel_id`."""

    stream: int
    pixel_id: str


@dataclass(frozen=True, slots=True)
class StreamOpenFailed:
    """The worker cannot open a stream now, for this reason; it tries again with each task of it."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class StreamRemark:
    """Something about a stream that its operator should know, and that stops nothing."""

    stream: int
    text: str


@dataclass(frozen=True, slots=True)
class UnfilledRow:
    """A row that could not be filled. `lasting` is False when trying again may help (an I/O error, say).

    `away`: it helps when the data of the stream are there again, and not before; nothing is said of the sample.
    """

    sample_id: int
    reason: str
    lasting: bool
    away: bool = False


class TaskDone(msgspec.Struct, frozen=True):
    """A task is finished but for `bad`; where its time went, in nanoseconds; `gathered` rows needed no decoding.

    In `waited_ns` of `read_ns` the worker did nothing but wait for a disk. `unfit` says why its stream cannot go on at
    all, if so.
    """

    number: int
    read_ns: int
    decode_ns: int
    idle_ns: int
    bad: tuple[UnfilledRow, ...] = ()
    gathered: int = 0
    unfit: str = ""
    waited_ns: int = 0


WorkerCommand = OpenStream | CloseStream | FillRows | UnmapSlots
WorkerReport = StreamReady | StreamOpenFailed | StreamRemark | TaskDone

_open: Final = msgspec.msgpack.Decoder(OpenStream)
_ready: Final = msgspec.msgpack.Decoder(StreamReady)
_unopened: Final = msgspec.msgpack.Decoder(StreamOpenFailed)
_remark: Final = msgspec.msgpack.Decoder(StreamRemark)
_done_details: Final = msgspec.msgpack.Decoder(tuple[tuple[UnfilledRow, ...], str])


def encode_command(command: WorkerCommand) -> bytes:
    """One datagram for a worker. Raises ConfigError for a stream that has too many labels."""
    match command:
        case FillRows():
            head = _TASK_HEAD.pack(
                _TASK,
                command.rows.size,
                command.stream,
                command.number,
                command.slot,
                command.slot_bytes,
                command.batch_rows,
                command.epoch,
            )
            rows, ids = command.rows.astype(_ROW, copy=False), command.ids.astype(_ID, copy=False)
            return head + rows.tobytes() + ids.tobytes()
        case OpenStream():
            return _check_record_size(command.spec, bytes([_STREAM]) + msgspec.msgpack.encode(command))
        case CloseStream():
            return _CLOSE_RECORD.pack(_CLOSE, command.number)
        case UnmapSlots():
            return bytes([_DROP]) + np.asarray(command.slots, dtype="<u8").tobytes()


def _check_record_size(spec: StreamSpec, record: bytes) -> bytes:
    """Raises ConfigError when a worker could not read it: it would die of it, and so would the next."""
    if len(record) > MAX_RECORD_BYTES:
        raise ConfigError(
            f"streams.{spec.name}.labels: {len(spec.labels)} labels take {len(record)} bytes to describe, "
            f"{MAX_RECORD_BYTES} are the most; make columns of a kind one label, with from: [columns]"
        )
    return record


def decode_command(data: bytes) -> WorkerCommand:
    """Raises ProtocolError for what `encode_command` did not write."""
    try:
        match data[0]:
            case 2:
                return _decode_fill_rows(data)
            case 1:
                return _open.decode(data[1:])
            case 6:
                return CloseStream(_CLOSE_RECORD.unpack(data)[1])
            case 3:
                return UnmapSlots(tuple(np.frombuffer(data, "<u8", offset=1).tolist()))
            case kind:
                raise ProtocolError(f"a worker got a record of unknown kind {kind}")
    except _DAMAGE as error:
        raise ProtocolError(f"a worker got a damaged record: {error}") from error


def _decode_fill_rows(data: bytes) -> FillRows:
    _, count, stream, number, slot, slot_bytes, batch_rows, epoch = _TASK_HEAD.unpack_from(data)
    if not 0 < count <= TASK_ROWS or len(data) != _TASK_HEAD.size + 10 * count:
        raise ProtocolError(f"a task of {count} rows in {len(data)} bytes")
    rows = np.frombuffer(data, "<u2", count, _TASK_HEAD.size)
    ids = np.frombuffer(data, "<i8", count, _TASK_HEAD.size + 2 * count)
    return FillRows(number, stream, slot, slot_bytes, batch_rows, rows, ids, epoch)


def encode_report(report: WorkerReport) -> bytes:
    """One datagram for the daemon."""
    match report:
        case TaskDone():
            times = report.read_ns, report.decode_ns, report.idle_ns, report.waited_ns
            head = _DONE_HEAD.pack(_DONE, bool(report.unfit), len(report.bad), report.gathered, report.number, *times)
            told = (report.bad, report.unfit)
            return head + (msgspec.msgpack.encode(told) if report.bad or report.unfit else b"")
        case StreamReady():
            return bytes([_READY]) + msgspec.msgpack.encode(report)
        case StreamOpenFailed():
            return bytes([_UNOPENED]) + msgspec.msgpack.encode(report)
        case StreamRemark():
            return bytes([_REMARK]) + msgspec.msgpack.encode(report)


def decode_report(data: bytes) -> WorkerReport:
    """Raises ProtocolError for what `encode_report` did not write."""
    try:
        match data[0]:
            case 5:
                return _decode_done(data)
            case 4:
                return _ready.decode(data[1:])
            case 7:
                return _unopened.decode(data[1:])
            case 9:
                return _remark.decode(data[1:])
            case kind:
                raise ProtocolError(f"a worker sent a record of unknown kind {kind}")
    except _DAMAGE as error:
        raise ProtocolError(f"a worker sent a damaged record: {error}") from error


def _decode_done(data: bytes) -> TaskDone:
    _, is_unfit, bad_rows, gathered, number, read_ns, decode_ns, idle_ns, waited_ns = _DONE_HEAD.unpack_from(data)
    rest = data[_DONE_HEAD.size :]
    bad, unfit = _done_details.decode(rest) if rest else ((), "")
    if (len(bad), bool(unfit)) != (bad_rows, is_unfit):
        raise ProtocolError(f"a task done with {bad_rows} bad rows names {len(bad)}, or does not say why none is fit")
    return TaskDone(number, read_ns, decode_ns, idle_ns, bad, gathered, unfit, waited_ns)


def format_error_reason(error: BaseException, max_chars: int = MAX_REASON_CHARS) -> str:
    """An error's words, fit for a record: one line, bounded, and encodable whatever bytes a file's name has."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.encode(errors="backslashreplace").decode()[:max_chars]
