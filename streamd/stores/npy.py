"""Samples that are rows of mapped arrays: gathered from the page cache into the slot, by one NumPy call a task."""

from __future__ import annotations

import os
import time
from typing import Final

import numpy as np

from streamd.confined import UnfitFileError, check_unchanged, open_unchanged
from streamd.errors import ConfigError
from streamd.manifest import Manifest
from streamd.mapping import map_readable
from streamd.plan import PAD_ID, Ids
from streamd.sources.wanted import Arrays
from streamd.stores import Mask, Pixels
from streamd.stores.ahead import Ahead

_LOOK_S: Final = 0.1  # between two looks at whether the files are still those that were listed, ...
_LOOK_SHARE: Final = 100  # ... which take no more than this part of the time, however many files there are


class ArrayStore:
    """All samples of a manifest that lists arrays. Those of a file that has changed are held no more."""

    def __init__(self, manifest: Manifest, arrays: Arrays, root: int) -> None:
        """Raises ConfigError when a file is not the one that was listed, OSError when it cannot be mapped."""
        self._manifest = manifest
        self._arrays = arrays
        self._root = root
        seen = manifest.sizes.tolist(), manifest.mtimes_ns.tolist()
        self._files = list(zip(manifest.array_files(), *seen, strict=True))
        self._descriptors: list[int] = []
        self._mapped: list[Pixels] = []
        try:
            for file in range(len(self._files)):
                self._map(file)
        except BaseException:
            self.close()
            raise
        self._ahead = Ahead(arrays.row_bytes)
        self._fresh = True
        self._look_s = 0.0

    def _map(self, file: int) -> None:
        name, size, mtime_ns = self._files[file]
        try:
            self._descriptors.append(open_unchanged(self._root, name, size, mtime_ns))
        except UnfitFileError as error:
            raise ConfigError(f"{os.fsdecode(name)!r} is {error}") from error
        starts, offset = self._arrays.starts, self._arrays.offsets[file]
        rows = starts[file + 1] - starts[file]
        memory = map_readable(self._descriptors[file], size)
        pixels = np.frombuffer(memory, np.uint8, rows * self._arrays.row_bytes, offset)
        self._mapped.append(pixels.reshape(rows, *self._arrays.shape))

    def held(self, ids: Ids) -> Mask:
        """All of them, unless a file has changed."""
        return ids != PAD_ID if self._is_fresh() else np.zeros(ids.size, np.bool_)

    def expect(self, ids: Ids) -> None:
        """Has rows read that are not in memory."""
        if self._ahead.asks:
            self._ahead.ask(map(self._lies, self._manifest.rows(ids[ids != PAD_ID]).tolist()))

    def _lies(self, row: int) -> tuple[int, int]:
        """Where a row lies: the descriptor of its file, and the bytes before it."""
        file, inner = self._arrays.place(row)
        return self._descriptors[file], self._arrays.offsets[file] + inner * self._arrays.row_bytes

    def gather(self, ids: Ids, images: Pixels) -> Mask:
        """Copies rows into `images`, (n, H, W, C); which of `ids` they are, (n,)."""
        rows = self._manifest.rows(ids)
        if len(self._mapped) == 1:
            np.take(self._mapped[0], rows, axis=0, out=images, mode="clip")  # "raise" would go by a copy
        else:
            for place, row in enumerate(rows.tolist()):
                file, inner = self._arrays.place(max(row, 0))
                images[place] = self._mapped[file][inner]
        self._ahead.note()
        return self.held(ids)

    def close(self) -> None:
        """Lets go of the mappings and of their files."""
        self._mapped.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _is_fresh(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._fresh = all(self._is_unchanged(*file) for file in self._files)
            self._look_s = now_s + max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - now_s))
        return self._fresh

    def _is_unchanged(self, name: bytes, size: int, mtime_ns: int) -> bool:
        try:
            check_unchanged(os.stat(name, dir_fd=self._root), size, mtime_ns)
        except (OSError, UnfitFileError):
            return False
        return True
