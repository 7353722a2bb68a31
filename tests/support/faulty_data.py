"""Data with the faults of a first day."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from streamd.cli.check.findings import CheckFindings
from streamd.cli.check.run import inspect_data
from streamd.cli.terminal import ProgressDisplay
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, create_memfd
from streamd.ipc.worker_messages import GroupResult, InspectRows
from streamd.worker.inspect_rows import inspect_rows
from streamd.worker.stream_reader import StreamReader
from support.daemon_process import stream_config, write_images
from support.smooth_pictures import png


def config_of(place: Path, streams: dict[str, dict[str, object]], **keys: object) -> Path:
    """A configuration file in `place`, two workers. Its endpoint is nobody's: a daemon may serve at the default one."""
    path = place / "config.yaml"
    common = {"listen": f"ipc:///tmp/sd-check-{os.getpid()}.sock", "memory": "64MiB", "workers": 2}
    path.write_text(json.dumps({**common, "streams": streams, **keys}))
    return path


def surveyed(place: Path, folder: Path, **changes: object) -> CheckFindings:
    """What is found in a stream `train` over a folder of classes."""
    config = config_of(place, {"train": stream_config(folder, **changes)})
    return inspect_data(config, ProgressDisplay())


def inspected(reader: StreamReader, ids: Sequence[int], counted: Sequence[int] = ()) -> GroupResult:
    """What a worker reports of these samples; the class numbers of the masks of those that are `counted`."""
    descriptor = create_memfd("track", PROGRESS_PAGE_BYTES)
    try:
        with closing(ProgressPage(descriptor)) as page:
            return inspect_rows(reader, InspectRows(0, list(ids), list(counted)), page)
    finally:
        os.close(descriptor)


def animals(place: Path) -> Path:
    """Two classes, eight good images."""
    return write_images(place / "data", {"cat": 5, "dog": 3})


def spoil(folder: Path) -> dict[str, str]:
    """Adds files that are no images; their names, with a part of the reason that each must get."""
    good = next(folder.glob("cat/*.jpg")).read_bytes()
    files = {
        "cat/cut.jpg": (good[: len(good) // 2], "damaged JPEG"),
        "cat/empty.jpg": (b"", "empty"),
        "dog/huge.png": (png(8, 2, [bytes(99)], (20_000, 20_000)), "pixels"),  # 400 million of them
        "dog/page.jpg": (b"<!DOCTYPE html><p>404", ""),
    }
    for name, (data, _) in files.items():
        (folder / name).write_bytes(data)
    return {name: reason for name, (_, reason) in files.items()}


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    """Noise; `size` is (width, height)."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
