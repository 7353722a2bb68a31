"""Records between daemon and worker: binary, on the datagrams of their socket pair, with descriptors attached.

Records that are sent at one time go in one datagram, since waking a process costs as much as several records.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from streamd.core.receipt import DigestPiece, Lanes
from streamd.core.sampler import BadSample, Ids
from streamd.core.spec import StreamSpec, compute_identity
from streamd.core.status import ClusterStatus
from streamd.errors import ConfigError, ProtocolError
from streamd.limits import MAX_REASON_CHARS, TASK_ROWS

RowNumbers = npt.NDArray[np.uint16]
_ROW: Final = np.dtype("<u2")
_ID: Final = np.dtype("<i8")

# The kinds of the records that are structures of C; `_PACKED_COMMANDS` and `_PACKED_REPORTS` have the others.
_TASK, _DROP, _DONE, _CLOSE = 2, 3, 5, 6
# Kind, whether it is a suspect, rows of the task, stream, number, slot, slot bytes, rows of the batch, epoch.
_TASK_HEAD: Final = struct.Struct("<B?HIQQQIxxxxQ")
_CLOSE_RECORD: Final = struct.Struct("<BxxxI")  # kind, stream
# Kind, unfit, bad and gathered rows, number, read, decode, idle, waited nanoseconds.
_DONE_HEAD: Final = struct.Struct("<B?HHxxQQQQQ")
MAX_RECORD_BYTES: Final = 64 * 1024
MAX_GROUP_RECORDS: Final = 16  # records in one datagram
TRANSFORM_RAISED: Final = "transform raised"  # the reason of a bad sample begins so if its file is not the cause
_DAMAGE: Final = (struct.error, msgspec.MsgspecError, ValueError, IndexError, RecursionError)  # raised by decoding


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where a stream's decoded samples are kept, at most `max_bytes` of them (None: no bound).

    `writable`: this worker adds samples.
    """

    folder: str
    max_bytes: int | None
    writable: bool = False


@dataclass(frozen=True, slots=True)
class TransformPlace:
    """A stream's transform: `function` of `module`, in `folder` or installed. `digest` is that of its source.

    `by_name`: it takes the images of a sample in a dict, as under the key `images`.
    """

    module: str
    function: str
    folder: str
    digest: str
    by_name: bool = False

    @property
    def source_version(self) -> str:
        """The identity of this function as it is written now, and as it is called."""
        called = ("by name",) if self.by_name else ()
        return compute_identity("streamd transform 1", self.function, self.digest, *called)


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open the stream whose manifest lies at `manifest`, and know it by `number` from now on.

    `away`: its data are missing or do not answer. The worker does not touch them until a task needs them.
    """

    number: int
    manifest: str
    spec: StreamSpec
    cache: CachePlace | None = None
    transform: TransformPlace | None = None
    away: bool = False


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close a stream. No task of it is in progress, and its number is never used again."""

    number: int


class FillRows(msgspec.Struct, frozen=True, eq=False):
    """Fill `rows` of a batch of `batch_rows` rows in `slot` with the samples `ids`.

    The descriptor of a slot that is new to the worker comes with it. `epoch` is the batch's epoch: random draws for a
    sample differ from epoch to epoch. A suspect has the rows of one sample: a worker died at the pixels of that sample,
    of a cause that the sample may explain. It is filled by a process that was never given a task.
    """

    number: int
    stream: int
    slot: int
    slot_bytes: int
    batch_rows: int
    rows: RowNumbers
    ids: Ids
    epoch: int = 0
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class InspectRows:
    """Read and decode the samples `ids` in this order, and return what is found in a `GroupResult`.

    The class numbers of masks are counted for the samples `counted`. The caller tries samples one by one after a death.
    """

    stream: int
    ids: list[int]
    counted: list[int] = field(default_factory=list)
    number: ClassVar[int] = 1
    is_suspect: ClassVar[bool] = False


ComputedPiece = tuple[Lanes, float]  # the lanes of a piece, and the processor time in seconds


@dataclass(frozen=True, slots=True)
class AddUpDigest:
    """Add up the lanes of a part of an epoch, which needs no stream, and return a `ComputedPiece`."""

    piece: DigestPiece
    number: ClassVar[int] = 1
    is_suspect: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class DrawThumbnail:
    """Draw as much of a sample as can be read, and return a JPEG; it is empty where nothing can be seen."""

    stream: int
    sample_id: int
    number: ClassVar[int] = 1
    is_suspect: ClassVar[bool] = False


# A task that fills no rows of a batch, and is answered by `TaskResult`. Its worker has one such task at a time and no
# other, so all have the same number. None is a suspect.
SideTask = InspectRows | AddUpDigest | DrawThumbnail


@dataclass(frozen=True, slots=True)
class UnmapSlots:
    """Unmap these slots."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StreamReady:
    """The worker has opened a stream. `pixel_id` is the identity of the pixels that it makes of the stream's files."""

    stream: int
    pixel_id: str


@dataclass(frozen=True, slots=True)
class StreamOpenFailed:
    """The worker cannot open a stream now, for this reason. It tries again with each task of the stream."""

    stream: int
    reason: str


@dataclass(frozen=True, slots=True)
class StreamRemark:
    """A note on a stream for its operator; the stream goes on."""

    stream: int
    text: str


class TaskDone(msgspec.Struct, frozen=True):
    """A task is finished, but for the rows of the samples `bad`; `gathered` rows needed no decoding.

    The times are in nanoseconds. In `waited_ns` of `read_ns` the worker did nothing but wait for a disk. `unfit` is
    the reason why its stream cannot go on at all, else empty.
    """

    number: int
    read_ns: int
    decode_ns: int
    idle_ns: int
    bad: tuple[BadSample, ...] = ()
    gathered: int = 0
    unfit: str = ""
    waited_ns: int = 0


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A part of the encoded result of a SideTask.

    A `GroupResult` may be larger than a record: a mask has up to 65,536 class numbers.
    """

    part: bytes
    is_last: bool


WorkerCommand = OpenStream | CloseStream | FillRows | SideTask | UnmapSlots


@dataclass(frozen=True, slots=True)
class TransformFault:
    """A fault in the transform of a stream version; `is_certain` if nothing else can be the cause."""

    stream_number: int
    reason: str
    is_certain: bool


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A decode process has ended (`description`), and was judged where it ran. Its unfinished `tasks` are given back.

    The death counts for the task `blamed_task`, 0 for none. `sample_fault` is the reason against the sample at `place`
    of that task, `transform_fault` the one against a transform that the process was trying. Each is None where the end
    does not show a fault.
    """

    description: str
    tasks: tuple[int, ...] = ()
    blamed_task: int = 0
    place: int = 0
    sample_fault: str | None = None
    transform_fault: TransformFault | None = None


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """The cluster behind this worker, as it is now."""

    cluster: ClusterStatus


WorkerReport = StreamReady | StreamOpenFailed | StreamRemark | TaskDone | TaskResult | WorkerDied | ClusterChanged

# The records that are MessagePack behind their kind.
_PACKED_COMMANDS: Final[Mapping[int, type[WorkerCommand]]] = {
    1: OpenStream,
    12: InspectRows,
    14: AddUpDigest,
    15: DrawThumbnail,
}
_PACKED_REPORTS: Final[Mapping[int, type[WorkerReport]]] = {
    4: StreamReady, 7: StreamOpenFailed, 9: StreamRemark, 10: WorkerDied, 11: ClusterChanged, 13: TaskResult,
}  # fmt: skip
_KINDS: Final = {record: kind for kind, record in [*_PACKED_COMMANDS.items(), *_PACKED_REPORTS.items()]}
_command_decoders: Final = {kind: msgspec.msgpack.Decoder(record) for kind, record in _PACKED_COMMANDS.items()}
_report_decoders: Final = {kind: msgspec.msgpack.Decoder(record) for kind, record in _PACKED_REPORTS.items()}
_done_details: Final = msgspec.msgpack.Decoder(tuple[tuple[BadSample, ...], str])


def encode_command(command: WorkerCommand) -> bytes:
    """Returns a command as one record. Raises ConfigError for a stream that has too many labels."""
    match command:
        case FillRows():
            head = _TASK_HEAD.pack(
                _TASK,
                command.is_suspect,
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
        case CloseStream():
            return _CLOSE_RECORD.pack(_CLOSE, command.number)
        case UnmapSlots():
            return bytes([_DROP]) + np.asarray(command.slots, dtype="<u8").tobytes()
        case OpenStream() | InspectRows() | AddUpDigest() | DrawThumbnail():
            record = bytes([_KINDS[type(command)]]) + msgspec.msgpack.encode(command)
            # A worker would die of a record that is too large to be read, and so would the next one. A digest's piece
            # is none: it has at most MAX_SEGMENTS segments.
            if isinstance(command, OpenStream) and len(record) > MAX_RECORD_BYTES:
                spec = command.spec
                raise ConfigError(
                    f"streams.{spec.name}.labels: {len(spec.labels)} labels take {len(record)} bytes to describe, but "
                    f"at most {MAX_RECORD_BYTES} are allowed; combine similar columns into one label, with from: "
                    "[columns]"
                )
            return record


def decode_command(data: bytes) -> WorkerCommand:
    """Returns the command of a record. Raises ProtocolError for bytes that `encode_command` did not write."""
    try:
        match data[0]:
            case 2:
                # After the head come two bytes of row number for each row, then eight bytes of sample id for each.
                _, is_suspect, count, stream, number, slot, slot_bytes, batch_rows, epoch = _TASK_HEAD.unpack_from(data)
                if not 0 < count <= TASK_ROWS or len(data) != _TASK_HEAD.size + 10 * count:
                    raise ProtocolError(f"a task of {count} rows in {len(data)} bytes")
                rows = np.frombuffer(data, "<u2", count, _TASK_HEAD.size)
                ids = np.frombuffer(data, "<i8", count, _TASK_HEAD.size + 2 * count)
                return FillRows(number, stream, slot, slot_bytes, batch_rows, rows, ids, epoch, is_suspect)
            case 6:
                return CloseStream(_CLOSE_RECORD.unpack(data)[1])
            case 3:
                return UnmapSlots(tuple(np.frombuffer(data, "<u8", offset=1).tolist()))
            case kind if kind in _command_decoders:
                return _command_decoders[kind].decode(data[1:])
            case kind:
                raise ProtocolError(f"a worker got a record of unknown kind {kind}")
    except _DAMAGE as error:
        raise ProtocolError(f"a worker got a damaged record: {error}") from error


def encode_report(report: WorkerReport) -> bytes:
    """Returns a report as one record."""
    if not isinstance(report, TaskDone):
        return bytes([_KINDS[type(report)]]) + msgspec.msgpack.encode(report)
    times = report.read_ns, report.decode_ns, report.idle_ns, report.waited_ns
    head = _DONE_HEAD.pack(_DONE, bool(report.unfit), len(report.bad), report.gathered, report.number, *times)
    return head + (msgspec.msgpack.encode((report.bad, report.unfit)) if report.bad or report.unfit else b"")


def decode_report(data: bytes) -> WorkerReport:
    """Returns the report of a record. Raises ProtocolError for bytes that `encode_report` did not write."""
    try:
        match data[0]:
            case 5:
                # Details follow the head only if the head announces bad rows or an unfit stream: the two must agree,
                # or a record that was cut would pass for a task without bad rows.
                head = _DONE_HEAD.unpack_from(data)
                _, is_unfit, bad_rows, gathered, number, read_ns, decode_ns, idle_ns, waited_ns = head
                rest = data[_DONE_HEAD.size :]
                bad, unfit = _done_details.decode(rest) if rest else ((), "")
                if (len(bad), bool(unfit)) != (bad_rows, is_unfit):
                    raise ProtocolError(
                        f"a task done with {bad_rows} bad rows names {len(bad)}, or does not say why none is fit"
                    )
                return TaskDone(number, read_ns, decode_ns, idle_ns, bad, gathered, unfit, waited_ns)
            case kind if kind in _report_decoders:
                return _report_decoders[kind].decode(data[1:])
            case kind:
                raise ProtocolError(f"a worker sent a record of unknown kind {kind}")
    except _DAMAGE as error:
        raise ProtocolError(f"a worker sent a damaged record: {error}") from error


def format_error_reason(error: BaseException, max_chars: int = MAX_REASON_CHARS) -> str:
    """Returns an error's message for a record, as `format_reason` does, or its type if it has none."""
    return format_reason(str(error), max_chars) or type(error).__name__


def format_reason(text: str, max_chars: int = MAX_REASON_CHARS) -> str:
    """Returns a text for a record: one line, at most `max_chars`, encodable whatever a file's name is."""
    text = " ".join(text.split())
    return text.encode(errors="backslashreplace").decode()[:max_chars]


# --- What an inspection of rows finds, for `streamd check`, and how the result of a side task travels.


# The effect of a fault in a worker: a bad sample, a sample that a transform cannot use, another try, the end of the
# worker, or the end of the stream.
FaultEffect = Literal["verdict", "transform", "retry", "crash", "stop"]
# What is odd about a picture that is served: nothing of it is visible, it is all but black since it has few of its 16
# bits, or its EXIF data cannot be read, so that nothing says which way up it is.
PictureOddity = Literal["invisible", "dark", "unturned"]
# Faults that the daemon records as verdicts; their samples are substituted or masked.
RECORDED_EFFECTS: Final[frozenset[FaultEffect]] = frozenset({"verdict", "transform"})
_PART_BYTES: Final = MAX_RECORD_BYTES // 2


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A sample that cannot be made into an image, and the effect that it has in a worker.

    `of_this_host`: its file is missing here, forbidden, or not the listed one.
    """

    sample_id: int
    reason: str
    effect: FaultEffect
    of_this_host: bool = False


@dataclass(frozen=True, slots=True)
class OddBoxes:
    """What is odd about the boxes or points of a label, as `find_odd_rows` and `find_label_fits` name it.

    `counts` says how many there are of each kind, and `first` which sample is the first that has such.
    """

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)

    def add_sample(self, sample_id: int, odd: Mapping[str, int]) -> OddBoxes:
        """Returns the sum of both."""
        there = {kind: count for kind, count in odd.items() if count}
        return self.add_odd_boxes(OddBoxes(there, dict.fromkeys(there, sample_id)))

    def add_odd_boxes(self, other: OddBoxes) -> OddBoxes:
        """Returns the sum of both."""
        first = {
            kind: min(each.first[kind] for each in (self, other) if kind in each.first)
            for kind in self.first | other.first
        }
        return OddBoxes(dict(Counter(self.counts) + Counter(other.counts)), first)


@dataclass(frozen=True, slots=True)
class SizeExample:
    """A sample in which an image has another size than its leader; sizes are (height, width) in pixels."""

    sample_id: int
    size: tuple[int, int]
    leader_size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class OddSizes:
    """The pictures of an image that have another size than its leader: `scaled` of the same proportions, `skewed` not.

    The examples are the first samples that have such.
    """

    scaled: int = 0
    skewed: int = 0
    scaled_example: SizeExample | None = None
    skewed_example: SizeExample | None = None

    def add_odd_sizes(self, other: OddSizes) -> OddSizes:
        """Returns the sum of both."""
        scaled, skewed = (
            min((each for each in found if each is not None), key=lambda each: each.sample_id, default=None)
            for found in (
                (self.scaled_example, other.scaled_example),
                (self.skewed_example, other.skewed_example),
            )
        )
        return OddSizes(self.scaled + other.scaled, self.skewed + other.skewed, scaled, skewed)


@dataclass(frozen=True, slots=True)
class ClassPixels:
    """The number of pixels of each class number in `masks` masks, as their files hold them."""

    masks: int = 0
    pixels: dict[int, int] = field(default_factory=dict)

    def add_class_pixels(self, other: ClassPixels) -> ClassPixels:
        """Returns the sum of both."""
        return ClassPixels(self.masks + other.masks, dict(Counter(self.pixels) + Counter(other.pixels)))


@dataclass(slots=True)
class GroupResult:
    """The result of reading a group. Times are in seconds.

    formats: the number of images by the format of their files; none for rows of arrays.
    sizes: the number of images by upright size, "heightxwidth".
    digests: hexadecimal, of all samples without a fault, in the group's order.
    enlarged: the number of images with fewer pixels than the stream's size requires.
    transparent: the number of images with an alpha channel or a transparent colour.
    odd_pictures: the samples with pictures that are served, and seldom meant so.
    odd_boxes: by label, boxes and points that cannot be right.
    odd_sizes: by image, pictures whose size is not that of the picture that they belong to.
    class_pixels: by image, the class numbers of the masks that were counted.
    pixel_id: the identity of the pixels that the worker makes of the stream's samples.
    unpacked, unpack_s: the number of an array's chunks that were decompressed, and the part of `read_s` that it took.
    """

    stream: int
    ids: list[int]
    read_s: float = 0.0
    decode_s: float = 0.0
    formats: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    enlarged: int = 0
    digests: list[str] = field(default_factory=list)
    faults: list[SampleFault] = field(default_factory=list)
    unpacked: int = 0
    unpack_s: float = 0.0
    transparent: int = 0
    odd_pictures: dict[PictureOddity, list[int]] = field(default_factory=dict)
    odd_boxes: dict[str, OddBoxes] = field(default_factory=dict)
    odd_sizes: dict[str, OddSizes] = field(default_factory=dict)
    class_pixels: dict[str, ClassPixels] = field(default_factory=dict)
    pixel_id: str = ""


GROUP_RESULT: Final = msgspec.msgpack.Decoder(GroupResult)
PICTURE: Final = msgspec.msgpack.Decoder(bytes)
COMPUTED_PIECE: Final[msgspec.msgpack.Decoder[ComputedPiece]] = msgspec.msgpack.Decoder(ComputedPiece)
ResultT = TypeVar("ResultT")


def split_result(result: Any) -> Iterator[TaskResult]:
    """Yields the reports that carry the result of a SideTask."""
    data = msgspec.msgpack.encode(result)
    for start in range(0, len(data), _PART_BYTES):
        yield TaskResult(data[start : start + _PART_BYTES], start + _PART_BYTES >= len(data))


def join_result(parts: Sequence[bytes], decoder: msgspec.msgpack.Decoder[ResultT]) -> ResultT:
    """Returns the result that came in these parts. Raises ProtocolError for parts of no such result."""
    try:
        return decoder.decode(b"".join(parts))
    except _DAMAGE as error:
        raise ProtocolError(f"a worker sent a damaged result: {error}") from error
