"""What a node needs to open a stream: the command, its manifest's key, and the modules of its transform."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from streamd.core.host import read_regular_file
from streamd.dataset.transform_source import find_source_files
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import OpenStream
from streamd.limits import MAX_TRANSFORM_SOURCES_BYTES, MIB


@dataclass(frozen=True, slots=True)
class StreamParcel:
    """A stream to be opened on a node. `manifest_key` names its manifest; `sources` are its transform's modules.

    The modules are keyed by their paths below the transform's folder. There are none for an installed module.
    """

    command: OpenStream
    manifest_key: str
    sources: dict[str, bytes] = field(default_factory=dict)


_decoder = msgspec.msgpack.Decoder(StreamParcel)


def pack_stream(command: OpenStream) -> StreamParcel:
    """Returns the parcel of a stream that this host has. Raises ConfigError, and OSError if a file cannot be read."""
    at = Path(command.manifest).stat()
    # A manifest with the same content may have been listed at another time or place, so both are part of its key.
    key = f"{command.spec.content_id} {command.manifest} {at.st_size} {at.st_mtime_ns}"
    return StreamParcel(command, key, _read_sources(command))


def _read_sources(command: OpenStream) -> dict[str, bytes]:
    if command.transform is None:
        return {}
    folder = Path(command.transform.folder)
    files = find_source_files(command.transform.module, folder).values()
    sources = {path.relative_to(folder).as_posix(): read_regular_file(path) for path in files}
    size = sum(map(len, sources.values()))
    if size > MAX_TRANSFORM_SOURCES_BYTES:
        raise ConfigError(
            f"streams.{command.spec.name}.transform: its modules have {size // MIB} MiB, and at most "
            f"{MAX_TRANSFORM_SOURCES_BYTES // MIB} are sent to nodes; install them there instead"
        )
    return sources


def encode_parcel(parcel: StreamParcel) -> bytes:
    """Returns a parcel as bytes."""
    return msgspec.msgpack.encode(parcel)


def decode_parcel(data: bytes) -> StreamParcel:
    """Returns the parcel that `encode_parcel` wrote."""
    return _decoder.decode(data)
