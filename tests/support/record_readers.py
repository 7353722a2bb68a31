"""Streams of several images a sample as a worker opens them, with transform and cache, and without a daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamd.config.load import load_config
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.ipc.worker_messages import OpenStream
from streamd.worker.stream_reader import StreamReader, open_reader


@contextmanager
def open_records(
    stream: dict[str, Any], folder: Path, *, is_writable: bool = True, is_listed: bool = False
) -> Iterator[StreamReader]:
    """Opens a stream of a configuration in `folder`, where a transform lies beside it, and its lists.

    `is_listed`: its samples are not listed again. `is_writable`: its cache is filled.
    """
    path = folder / "config.yaml"
    path.write_text(json.dumps({"streams": {"train": stream}}))
    config = load_config(path)
    if not is_listed:
        write_sample_manifests(config, folder / "state", lambda *_: None)
    (served,) = open_streams(config, folder / "state")
    cache = None if served.cache is None else replace(served.cache, writable=is_writable)
    if cache is not None:
        Path(cache.folder).mkdir(exist_ok=True)
    reader, remark = open_reader(OpenStream(0, str(served.manifest_path), served.spec, cache, served.transform))
    assert remark == ""
    yield reader
    reader.close()
    served.manifest.close()
