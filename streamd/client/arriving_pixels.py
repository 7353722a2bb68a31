"""Puts the pixels of a batch together, which arrive in pieces, each in a message of its own behind the batch's header.

Messages of a connection keep their order, so the pieces that arrive belong to the header before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamd.errors import ProtocolError
from streamd.ipc.frames import decode_daemon_frame
from streamd.ipc.messages import BatchReady


@dataclass(slots=True)
class _ArrivingBatch:
    frame: bytes
    memory: memoryview
    filled: int = 0


class ArrivingPixels:
    """The batch of one connection whose pixels have begun to arrive. Used by the I/O thread."""

    def __init__(self) -> None:
        self._batch: _ArrivingBatch | None = None

    def begin_batch(self, frame: bytes, piece: memoryview) -> memoryview | None:
        """Takes a batch's frame and its first piece. Returns the pixels if that is all of them, else None.

        Raises ProtocolError for a frame of anything else.
        """
        _, message = decode_daemon_frame(frame)
        if not isinstance(message, BatchReady) or self._batch is not None or len(piece) > message.slot_bytes:
            raise ProtocolError("pixels arrived that belong to no batch")
        if len(piece) == message.slot_bytes:
            return piece
        # Memory of malloc's, which gives the pages of one batch to the next; bytearray would fill it with zeros first.
        memory = np.empty(message.slot_bytes, np.uint8).data
        self._batch = _ArrivingBatch(frame, memory)
        self._fill(self._batch, piece)
        return None

    def add_piece(self, piece: memoryview) -> tuple[bytes, memoryview] | None:
        """Takes the next piece. Returns the batch's frame and its pixels when they are complete, else None.

        Raises ProtocolError for more pixels than the batch has.
        """
        batch = self._batch
        if batch is None or batch.filled + len(piece) > len(batch.memory):
            raise ProtocolError("more pixels arrived than their batch has")
        self._fill(batch, piece)
        if batch.filled < len(batch.memory):
            return None
        self._batch = None
        return batch.frame, batch.memory.toreadonly()

    def forget_batch(self) -> None:
        """Drops what has arrived of a batch: its connection has ended."""
        self._batch = None

    @staticmethod
    def _fill(batch: _ArrivingBatch, piece: memoryview) -> None:
        batch.memory[batch.filled : batch.filled + len(piece)] = piece
        batch.filled += len(piece)
