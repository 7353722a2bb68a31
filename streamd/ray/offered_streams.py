"""The streams that a bridge offers to nodes: what each needs to open one, and the pixels that it must make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from streamd.core.spec import PixelId
from streamd.errors import StreamdError
from streamd.ipc.worker_messages import OpenStream
from streamd.ray.stream_parcel import StreamParcel, pack_stream


@dataclass(slots=True, eq=False)
class OfferedStream:
    """One stream version. `pixel_id` is known when this host's own worker has opened it."""

    command: OpenStream
    pixel_id: asyncio.Future[PixelId]
    _parcel: StreamParcel | None = None
    _manifest: Any = None  # its reference in the object store
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def offer(cls, command: OpenStream) -> Self:
        """Returns a stream whose pixels are not known yet."""
        return cls(command, asyncio.get_running_loop().create_future())

    def withdraw(self) -> None:
        """Ends the wait of nodes for the pixels of a stream that is closed before anybody has opened it."""
        if not self.pixel_id.done():
            self.pixel_id.set_exception(StreamdError("the stream was closed"))
            self.pixel_id.exception()  # nobody needs to wait for it

    async def pack(self) -> StreamParcel:
        """Returns the parcel for a node. Raises ConfigError and OSError."""
        async with self._lock:
            if self._parcel is None:
                self._parcel = await asyncio.to_thread(pack_stream, self.command)
            return self._parcel

    async def put_manifest(self, put_bytes: Callable[[npt.NDArray[np.uint8]], Any]) -> Any:
        """Puts the manifest into the object store, once for all nodes; returns its reference."""
        async with self._lock:
            if self._manifest is None:
                path = Path(self.command.manifest)
                self._manifest = await asyncio.to_thread(lambda: put_bytes(np.memmap(path, np.uint8, "r")))
            return self._manifest
