"""A wire between a client and a daemon that a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from streamd.ipc.endpoint import descriptor_socket_path

_CHUNK_BYTES: Final = 65536


@dataclass(slots=True, eq=False)
class _Wire:
    near: socket.socket
    far: socket.socket
    silent: bool = False


class Relay:
    """Listens at `path` and carries every connection on to `target`, byte by byte. A context manager.

    The descriptor socket beside it is the target's own.
    """

    def __init__(self, path: Path, target: str) -> None:
        self.endpoint = f"ipc://{path}"
        self._target = target.removeprefix("ipc://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._beside = Path(descriptor_socket_path(path))
        self._beside.symlink_to(descriptor_socket_path(self._target))
        self._wires: list[_Wire] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        self._beside.unlink()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *(end for wire in self._wires for end in (wire.near, wire.far))):
            end.close()

    @property
    def connections(self) -> int:
        """How many there were so far."""
        return len(self._wires)

    def cut(self) -> None:
        """Ends every connection that there is, both ways at once."""
        with self._lock:
            for wire in self._wires:
                _end(wire.near)
                _end(wire.far)

    def silence(self) -> None:
        """From now on nothing arrives over the connections that there are, and nobody is told."""
        with self._lock:
            for wire in self._wires:
                wire.silent = True

    def _run(self, what: Callable[[], None]) -> None:
        thread = threading.Thread(target=what)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # it was shut down
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            wire = _Wire(near, far)
            with self._lock:
                self._wires.append(wire)
            self._run(partial(_carry, wire, near, far))
            self._run(partial(_carry, wire, far, near))


def _carry(wire: _Wire, source: socket.socket, sink: socket.socket) -> None:
    """One way. When either end is gone the other one goes too."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            if not wire.silent:
                sink.sendall(data)
    _end(source)
    _end(sink)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
