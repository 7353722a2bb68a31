"""What check and its reading processes say to each other, as JSON. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from streamd.core.spec import StreamSpec
from streamd.ipc.worker_messages import TransformPlace

# What a worker does about it: a bad sample, one that a transform makes bad, another try, its own end, or its stream's.
FaultEffect = Literal["verdict", "transform", "retry", "crash", "stop"]
# What goes on record, and is stepped over.
RECORDED_EFFECTS: Final[frozenset[FaultEffect]] = frozenset({"verdict", "transform"})


@dataclass(frozen=True, slots=True)
class StreamToRead:
    """A stream to read; its number is its place in the list that comes first."""

    spec: StreamSpec
    manifest: str
    transform: TransformPlace | None = None


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples of one stream, to be read in this order."""

    stream: int
    ids: list[int]


@dataclass(frozen=True, slots=True)
class SampleFault:
    """A sample that does not become an image."""

    sample_id: int
    reason: str
    effect: FaultEffect


@dataclass(slots=True)
class GroupResult:
    """What became of a group. Times in seconds; `sizes` as "widthxheight", upright; `digests` of all that are no fault,
    hexadecimal, in the group's order; `enlarged` counts those with fewer pixels than the stream's size asks for,
    `transparent` those that have an alpha channel or a transparent colour. For `unpack_s` of `read_s`, `unpacked`
    chunks of an array were decompressed."""

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
