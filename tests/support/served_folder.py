"""A folder of images as the daemon would serve it, without the daemon."""

from __future__ import annotations

import os
from pathlib import Path

from streamd.config.load import load_config
from streamd.daemon.streams.catalog import has_all_manifests, open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream
from support.daemon_process import stream_config


def serve(folder: Path, state: Path, *, rescan: bool = False, **changes: object) -> ServedStream:
    """The stream `train` over a folder of classes; `changes` are keys of its configuration."""
    config = load_config({"streams": {"train": stream_config(folder, **changes)}})
    if rescan or not has_all_manifests(config, state):
        write_sample_manifests(config, state, lambda *_: None)
    return open_streams(config, state)[0]


def file_of(stream: ServedStream, sample_id: int) -> Path:
    """Where a sample's bytes lie."""
    return stream.manifest.root / stream.format_file_name(sample_id)


def spoil(stream: ServedStream, sample_id: int) -> None:
    """Makes a sample's file undecodable without anybody noticing: same size, same mtime."""
    path = file_of(stream, sample_id)
    before = path.stat()
    path.write_bytes(b"\xff\xd8\xff" + bytes(before.st_size - 3))
    change_times(path, before.st_mtime_ns)


def change_times(path: Path, mtime_ns: int) -> None:
    """Sets a file's mtime."""
    os.utime(path, ns=(mtime_ns, mtime_ns))
