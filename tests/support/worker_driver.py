"""A worker process that a test drives through its socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Self

import numpy as np
import numpy.typing as npt

from streamd.core.slot_layout import compute_slot_bytes
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.decoders import decode_image
from streamd.ipc.messages import split_records
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, SlotStore, create_memfd
from streamd.ipc.worker_messages import (
    MAX_RECORD_BYTES,
    FillRows,
    OpenStream,
    TaskDone,
    WorkerCommand,
    WorkerReport,
    decode_report,
    encode_command,
)
from support.served_folder import file_of

ANSWER_S = 40.0
ROWS = 8


class Hand:
    """Our end of a worker's socket."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(ANSWER_S)
        self._records: list[bytes] = []
        self.slots = SlotStore()
        self._known_slots: set[int] = set()
        page = create_memfd("track", PROGRESS_PAGE_BYTES)
        self.track = ProgressPage(page)
        command = [sys.executable, "-P", "-m", "streamd.worker", str(theirs.fileno()), str(page), "0"]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno(), page], stderr=subprocess.PIPE)
        os.close(page)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        self.slots.close()
        self.track.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()

    def send(self, command: WorkerCommand) -> None:
        """Sends a command, and the descriptor of its slot where that is new."""
        descriptors = []
        if isinstance(command, FillRows) and command.slot not in self._known_slots:
            self._known_slots.add(command.slot)
            descriptors.append(self.slots.ensure_slot(command.slot, command.slot_bytes))
        socket.send_fds(self.link, [encode_command(command)], descriptors)

    def hear(self) -> WorkerReport:
        self._records = self._records or split_records(self.link.recv(MAX_RECORD_BYTES))
        return decode_report(self._records.pop(0))

    def finish(self, task: FillRows) -> TaskDone:
        """Sends a task; what comes of it."""
        self.send(task)
        done = self.hear()
        assert isinstance(done, TaskDone)
        return done

    def finished(self, count: int) -> list[int]:
        """The numbers of the next tasks that are done."""
        reports = [self.hear() for _ in range(count)]
        return [report.number for report in reports if isinstance(report, TaskDone)]

    def open(self, stream: ServedStream) -> WorkerReport:
        self.send(OpenStream(0, str(stream.manifest_path), stream.spec))
        return self.hear()

    def end(self) -> tuple[int, str]:
        """Hangs up: exit status and what the worker said on standard error."""
        self.link.close()
        _, said = self.process.communicate(timeout=ANSWER_S)
        return self.process.returncode, said.decode()


def task(stream: ServedStream, number: int, rows: list[int], ids: list[int], slot: int = 1) -> FillRows:
    return FillRows(
        number, 0, slot, compute_slot_bytes(stream.spec), ROWS, np.array(rows, np.uint16), np.array(ids, np.int64)
    )


def pixels(stream: ServedStream, sample_id: int) -> npt.NDArray[np.uint8]:
    row = np.empty(stream.spec.image_shape, np.uint8)
    decode_image(file_of(stream, sample_id).read_bytes(), row, stream.spec.image)
    return row
