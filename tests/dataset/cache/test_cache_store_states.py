"""A cache gathers only what was decoded, after any sequence of operations on it and its file.

Hypothesis chooses the operations; the test knows the right pixels of each file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.hypothesis_settings import explored, seldom
from support.sample_specs import some_spec

from streamd.core.spec import ImageSpec, PixelId
from streamd.dataset.arrays.store import Pixels
from streamd.dataset.cache import CacheLayout, DecodedCache, UnfitCacheError
from streamd.dataset.manifest.manifest import Manifest
from streamd.ipc.worker_messages import CachePlace
from streamd.limits import PAGE_BYTES

SAMPLES: Final = 6
SPEC: Final = some_spec(samples=SAMPLES, content_id="c" * 32, images={"image": ImageSpec(3, 5, 3)})
PIXEL_ID: Final = PixelId("d" * 32)
SHAPE: Final = CacheLayout.from_stream_spec(SPEC, PIXEL_ID)

ids = st.integers(0, SAMPLES - 1)
room = st.integers(0, SAMPLES)
which = st.integers(0, 9)


@dataclass
class Listed:
    """Stands for a manifest: files as they were listed."""

    sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.full(SAMPLES, 99))
    mtimes_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.arange(SAMPLES))
    images: dict[str, Any] = field(default_factory=dict)

    def lookup_mtimes_ns(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self.mtimes_ns[ids]


class CacheMachine(RuleBasedStateMachine):
    """Processes with one cache between them; they are killed, and its file is cut, damaged and deleted."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="sd"))
        self._listed = Listed()
        self._open: list[DecodedCache] = []

    def _pixels(self, sample_id: int) -> Pixels:
        """The right pixels of a file as it was when it was listed."""
        rng = np.random.default_rng([sample_id, self._listed.mtimes_ns[sample_id]])
        return rng.integers(0, 256, SPEC.image_shape, dtype=np.uint8)

    @property
    def _file(self) -> Path:
        return self._folder / SHAPE.cache_file_name

    def _kill_all(self) -> None:
        for cache in self._open:
            cache._file.close()
        self._open.clear()

    @initialize()
    def begin(self) -> None:
        self._enter(SAMPLES, writable=True)

    @rule()
    def begin_another(self) -> None:
        self.begin()

    @rule(room=room, reads_only=seldom)
    def begin_with_less(self, room: int, *, reads_only: bool) -> None:
        self._enter(room, writable=not reads_only)

    def _enter(self, room: int, *, writable: bool) -> None:
        place = CachePlace(str(self._folder), SHAPE.file_bytes(room), writable)
        try:
            cache = DecodedCache.open(place, SPEC, cast("Manifest", self._listed), PIXEL_ID)
        except UnfitCacheError:
            return
        self._open.append(cache)

    @rule()
    def kill(self) -> None:
        self._kill_all()
        self.begin()

    @precondition(lambda self: self._open)
    @rule(sample_id=ids, which=which)
    def keep(self, sample_id: int, which: int) -> None:
        self._open[which % len(self._open)].write_sample(sample_id, {"image": self._pixels(sample_id)}, {})

    @precondition(lambda self: self._open)
    @rule(which=which)
    def publish(self, which: int) -> None:
        self._open[which % len(self._open)].publish_rows()

    @precondition(lambda self: self._file.exists())
    @rule(at=st.integers(0, SHAPE.file_bytes(SAMPLES)), bit=st.integers(0, 7), much=seldom)
    def damage(self, at: int, bit: int, *, much: bool) -> None:
        """One bit is flipped, or a range is zeroed, as after a power cut; all processes are killed first."""
        self._kill_all()
        data = bytearray(self._file.read_bytes())
        place = PAGE_BYTES + at % max(1, len(data) - PAGE_BYTES)
        if much:
            data[place : place + SHAPE.row_bytes] = bytes(len(data[place : place + SHAPE.row_bytes]))
        elif place < len(data):
            data[place] ^= 1 << bit
        self._file.write_bytes(data)
        self.begin()

    @precondition(lambda self: self._file.exists())
    @rule(left=st.integers(0, SHAPE.file_bytes(SAMPLES)))
    def cut(self, left: int) -> None:
        self._kill_all()
        os.truncate(self._file, min(left, self._file.stat().st_size))
        self.begin()

    @precondition(lambda self: self._file.exists())
    @rule()
    def delete(self) -> None:
        self._file.unlink()

    @rule(sample_id=ids)
    def list_again(self, sample_id: int) -> None:
        """One file was written since; the daemon starts with the new list."""
        self._kill_all()
        self._listed.mtimes_ns[sample_id] += SAMPLES
        self.begin()

    @invariant()
    def what_is_gathered_is_what_was_decoded(self) -> None:
        for cache in self._open:
            asked = np.arange(-1, SAMPLES)
            images = np.empty((asked.size, *SPEC.image_shape), np.uint8)
            held = cache.find_gatherable(asked)
            gathered, _ = cache.gather(asked, {"image": images})
            assert not gathered[0], "no sample"
            assert not (gathered & ~held).any()
            assert np.array_equal(cache.find_gatherable(asked), gathered)
            for image, sample_id in zip(images[gathered], asked[gathered].tolist(), strict=True):
                assert np.array_equal(image, self._pixels(sample_id))

    def teardown(self) -> None:
        self._kill_all()
        shutil.rmtree(self._folder)


TestCaching = pytest.mark.long(CacheMachine.TestCase)
TestCaching.settings = explored()
