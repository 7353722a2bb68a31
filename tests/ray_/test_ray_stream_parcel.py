"""What is sent to a node: a stream's command, the key of its manifest, and the modules of its transform."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import OpenStream
from streamd.ray import node_actor
from streamd.ray.node_actor import StreamParcel, pack_stream


def test_a_parcel_arrives_as_it_was_sent(stream: ServedStream) -> None:

    parcel = pack_stream(OpenStream(4, str(stream.manifest_path), stream.spec))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(parcel), type=StreamParcel) == parcel
    assert stream.spec.content_id in parcel.manifest_key
    assert parcel.sources == {}


def test_the_modules_of_a_transform_are_sent_unless_they_are_too_large(
    stream: ServedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "augment.py").write_text("def f(i, l, r): return i, l\n")
    place = find_transform_source("augment:f", tmp_path)
    command = OpenStream(4, str(stream.manifest_path), stream.spec, None, place)
    assert pack_stream(command).sources == {"augment.py": (tmp_path / "augment.py").read_bytes()}
    monkeypatch.setattr(node_actor, "MAX_TRANSFORM_SOURCES_BYTES", 1)
    with pytest.raises(ConfigError, match="install them there instead"):
        pack_stream(command)
