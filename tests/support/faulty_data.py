"""Data with the faults of a first day, and reading processes that crash on purpose."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from streamd.cli.check.findings import CheckFindings
from streamd.cli.check.reader_messages import StreamToRead
from streamd.cli.check.run import inspect_data
from streamd.cli.terminal import ProgressDisplay
from streamd.daemon.streams.served_stream import ServedStream
from support.daemon_process import stream_config, write_images
from support.smooth_pictures import png

CRASH: Final = b"this file crashes the decoder"

# The real reading process, with a decoder that dies of files that end in CRASH.
CRASHING: Final = (
    sys.executable,
    "-P",
    "-c",
    f"""
import os
from streamd.cli.check import reader_process as reading
from streamd.decode import decoders

decode = decoders.decode_image

def decode_image(data, row, image, draw):
    if data.endswith({CRASH!r}):
        os.abort()
    return decode(data, row, image, draw)

decoders.decode_image = decode_image
reading.main()
""",
)


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


def told(stream: ServedStream) -> StreamToRead:
    return StreamToRead(stream.spec, str(stream.manifest_path))


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
