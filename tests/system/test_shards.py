"""Images in tar shards: what trainers get, and the end of a stream whose shard is replaced."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from support.checked_epochs import verdicts
from support.daemon_process import Start, stream_config, write_images
from support.tar_shards import pack, pack_folder

import streamd
from streamd.errors import StreamStoppedError


@pytest.mark.long
def test_shards_give_what_their_folder_gives_until_one_is_replaced(start_daemon: Start, tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", {"cat": 20, "dog": 20})
    (data / "cat/0003.jpg").write_bytes(b"\xff\xd8\xff no image")
    pack_folder(tmp_path / "shards/all.tar", data)
    packed = stream_config(data, source={"kind": "tar", "path": str(tmp_path / "shards")}, shuffle="none")
    daemon = start_daemon({"streams": {"loose": stream_config(data, shuffle="none"), "packed": packed}})
    with streamd.connect(daemon.endpoint) as client:
        assert client.names("packed", [0, 39]) == ["all.tar/cat/0000.jpg", "all.tar/dog/0019.jpg"]
        with client.subscribe("loose", epochs=1) as loose, client.subscribe("packed", epochs=1) as shards:
            for loose_batch, packed_batch in zip(loose, shards, strict=True):
                assert np.array_equal(loose_batch.images, packed_batch.images)
                assert np.array_equal(loose_batch.labels["label"], packed_batch.labels["label"])
                assert loose_batch.sample_ids.tolist() == packed_batch.sample_ids.tolist()
                assert [bad.sample_id for bad in loose_batch.bad] == [bad.sample_id for bad in packed_batch.bad]
        assert shards.receipts[0].bad == 1
        with client.subscribe("packed") as stream:
            next(iter(stream))
            pack(tmp_path / "new", {"cat/0000.jpg": b""}).replace(tmp_path / "shards/all.tar")
            with pytest.raises(StreamStoppedError, match=r"'all\.tar' has changed since it was listed"):
                deque(stream, maxlen=0)
    assert [json.loads(line)["sample_id"] for line in verdicts(daemon)] == [3, 3]
