"""Decoding the largest picture of any kind needs no more memory than a worker has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import FILES
from golden_files import exif
from PIL import Image

from streamd.decode import pillow
from streamd.decode.pillow import PixelStorage, PlainMode
from streamd.limits import (
    CACHE_UNPUBLISHED_BYTES,
    CHUNKS_KEPT_BYTES,
    MAX_FILE_BYTES,
    MAX_PIXELS,
    MIB,
    READ_AHEAD_BYTES,
    WORKER_DATA_BYTES,
)

HEIGHT, WIDTH = 2000, 2500
MOST_PICTURES = 4.4  # that a decode holds at a time, of four bytes a pixel: libwebp holds two, and Pillow two more
PROCESS_BYTES = 160 * MIB  # of a worker that decodes nothing

# In a process of its own, whose limit is that of its own, and what was there before a picture.
DECODE = """
import resource, sys
import numpy as np
from streamd.decode.decoders import decode_image
from streamd.core.spec import ImageSpec
most, small, data = int(sys.argv[1]), open(sys.argv[2], "rb").read(), open(sys.argv[3], "rb").read()
row, image = np.empty((32, 32, 3), np.uint8), ImageSpec(32, 32, 3)
decode_image(small, row, image)
pages = int(open("/proc/self/statm").read().split()[5])
resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + most, resource.RLIM_INFINITY))
decode_image(data, row, image)
"""


def with_alpha() -> Image.Image:
    return Image.merge("RGBA", [Image.linear_gradient("L").resize((WIDTH, HEIGHT))] * 4)


def deep() -> Image.Image:
    return Image.fromarray(np.tile(np.arange(WIDTH, dtype=np.uint16) * 26, (HEIGHT, 1)))


KINDS: dict[str, tuple[Callable[[], Image.Image], dict[str, Any]]] = {
    "turned.webp": (with_alpha, {"lossless": True, "method": 0, "exif": exif(6)}),
    "alpha.png": (with_alpha, {"compress_level": 1}),
    "deep.pgm": (deep, {}),
    "transparent.gif": (lambda: with_alpha().convert("L").convert("P"), {"transparency": 0}),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_decode_holds_no_more_than_a_few_pictures_at_a_time(kind: str, tmp_path: Path) -> None:
    make, options = KINDS[kind]
    picture = make()
    picture.save(tmp_path / kind, **options)
    picture.crop((0, 0, 40, 30)).save(tmp_path / f"small-{kind}", **options)
    most = int(MOST_PICTURES * 4 * WIDTH * HEIGHT) + 2 * (tmp_path / kind).stat().st_size
    words = [sys.executable, "-c", DECODE, str(most), str(tmp_path / f"small-{kind}"), str(tmp_path / kind)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-500:]


def test_a_worker_has_memory_for_the_largest_picture_and_its_buffers() -> None:
    beside = READ_AHEAD_BYTES + CHUNKS_KEPT_BYTES + CACHE_UNPUBLISHED_BYTES + PROCESS_BYTES
    assert MOST_PICTURES * 4 * MAX_PIXELS + 2 * MAX_FILE_BYTES + beside <= WORKER_DATA_BYTES


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_converting_in_bands_changes_no_pixel(mode: PlainMode, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sorted(FILES.iterdir()):
        with Image.open(path) as picture:
            picture.load()
            whole = np.asarray(pillow.convert_to_plain_mode(picture, mode, PixelStorage()))
            with monkeypatch.context() as patch:
                patch.setattr(pillow, "_BAND_PIXELS", 7 * picture.width)
                assert np.array_equal(np.asarray(pillow.convert_to_plain_mode(picture, mode, PixelStorage())), whole), (
                    path.name
                )
