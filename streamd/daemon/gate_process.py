"""One helper process at the daemon's border, as the daemon sees it: the door, or the gate of one user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from streamd.core.text import shorten_text
from streamd.ipc.record_link import LinkCallbacks, RecordKind, RecordLink
from streamd.limits import GATE_UNREAD_S, MAX_REFUSAL_CHARS, SECRET_BYTES

_STDERR_BYTES: Final = 4096  # the last words of a process, which are logged
Role = Literal["door", "user", "network"]
_SEND_BUFFER_BYTES: Final = 1 << 20


class GateProcess:
    """A running door or gate: its process, its link, and the socket pair on which it passes descriptors.

    `on_record` handles its records, `on_lifeline(connection, secret)` a trainer's lifeline, which the callee owns.
    Lives on the event loop.
    """

    def __init__(
        self,
        on_record: Callable[[RecordKind, bytes], None],
        on_lifeline: Callable[[socket.socket, bytes], None] = lambda connection, _secret: connection.close(),
        measure_pause_s: Callable[[float], float] = lambda _took_s: 0.0,
    ) -> None:
        self._callbacks = LinkCallbacks(on_record, self.kill, measure_pause_s, self._watch_unread_frames)
        self._on_lifeline = on_lifeline
        self._process: asyncio.subprocess.Process | None = None
        self._link: RecordLink | None = None
        self._descriptors: socket.socket | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self, role: Role, settings: Mapping[str, Any], inherited: socket.socket | None = None) -> None:
        """Starts `python -m streamd.gate` with these settings and a copy of `inherited`. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors, their_descriptors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed = [theirs, their_descriptors, *([inherited] if inherited is not None else [])]
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "streamd.gate", role, *(str(each.fileno()) for each in passed),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=[each.fileno() for each in passed],
                process_group=0,  # out of reach of the terminal's Ctrl-C
                limit=_STDERR_BYTES,
            )  # fmt: skip
        except BaseException:
            ours.close()
            descriptors.close()
            raise
        finally:
            theirs.close()
            their_descriptors.close()
        for end in (ours, descriptors):
            end.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._descriptors = descriptors
        self._link = await RecordLink.open(ours, self._callbacks, is_of_gate=True)
        asyncio.get_running_loop().add_reader(descriptors, self._receive_lifeline)
        # A helper that ends before it has read this ends its link too, which kill() notices.
        self._link.send_record(RecordKind.SETTINGS, json.dumps(settings).encode())

    def send_record(self, kind: RecordKind, body: bytes) -> None:
        if self._link is not None:
            self._link.send_record(kind, body)

    def send_frame(self, identity: bytes, frame: bytes) -> bool:
        """Sends a frame for one of its clients, or queues it. False if the process is gone."""
        link = self._link
        if link is None or link.is_closed:
            return False
        link.send_frame(identity, frame)
        return True

    def _watch_unread_frames(self, is_full: bool) -> None:
        """Ends a process that has taken nothing for GATE_UNREAD_S while frames wait for it."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        if is_full and self._link is not None:
            self._unread_timer = asyncio.get_running_loop().call_later(
                GATE_UNREAD_S, self._check_taken_bytes, self._link, self._link.taken_bytes
            )

    def _check_taken_bytes(self, link: RecordLink, taken_bytes: int) -> None:
        if link.taken_bytes == taken_bytes:
            self.kill()
        else:
            self._watch_unread_frames(is_full=True)

    def kill(self) -> None:
        """Ends the process. `wait_until_ended` returns soon after."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait_until_ended(self) -> str:
        """Waits for the end of the process, and returns how it ended with its last words. Closes the links."""
        process = self._process
        if process is None or process.stderr is None:
            return "it did not start"
        try:
            words = b""
            while said := await process.stderr.read(_STDERR_BYTES):
                words = (words + said)[-_STDERR_BYTES:]
            status = await process.wait()
        finally:
            self.kill()
            self._close_links()
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        last = words.decode(errors="replace").strip().splitlines()[-1:]
        return shorten_text(f"{ending}{': ' + last[0] if last else ''}", MAX_REFUSAL_CHARS)

    def _close_links(self) -> None:
        self._watch_unread_frames(is_full=False)
        if self._descriptors is not None:
            asyncio.get_running_loop().remove_reader(self._descriptors)
            self._descriptors.close()
            self._descriptors = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def _receive_lifeline(self) -> None:
        assert self._descriptors is not None  # noqa: S101 - only its own reader calls this
        try:
            secret, descriptors, _, _ = socket.recv_fds(self._descriptors, SECRET_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            secret, descriptors = b"", []
        if descriptors:
            self._on_lifeline(socket.socket(fileno=descriptors[0]), secret)
        elif not secret:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._descriptors)
