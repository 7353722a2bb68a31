"""Computes digests in a process of its own: `python -m streamd.daemon.streams.digest_process SOCKET`.

A thread of the daemon would share the interpreter with the event loop, and slow it down by more than its own time. What
other users ask for is therefore computed here. The daemon sends a DigestPiece as JSON, one in each message, and gets
its lanes and the processor time that they took, in seconds.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from typing import Final

import msgspec

from streamd.core import log
from streamd.core.receipt import DigestPiece, Lanes, compute_piece_lanes
from streamd.ipc.child import open_child_link, start_child_of_thread
from streamd.ipc.inherited_state import correct_inherited_state, die_with_parent, raise_oom_score
from streamd.limits import DIGEST_ANSWER_S, DIGEST_NICENESS, DIGEST_RESTART_S, WORKER_ENVIRONMENT

_MESSAGE_BYTES: Final = 1 << 17  # more than a piece takes: it has at most MAX_SEGMENTS segments
ComputedPiece = tuple[Lanes, float]  # the lanes of a piece, and the processor time in seconds

_piece_decoder: Final = msgspec.json.Decoder(DigestPiece)
_answer_decoder: Final[msgspec.json.Decoder[ComputedPiece]] = msgspec.json.Decoder(ComputedPiece)


def compute_piece(piece: DigestPiece) -> ComputedPiece:
    """Returns the lanes of a piece, computed in this thread, and the processor time that it took, in seconds."""
    began_s = time.thread_time()
    return compute_piece_lanes(piece), time.thread_time() - began_s


class DigestProcess:
    """The process, which starts with the first piece. Used by one thread, which waits for each piece.

    Where it cannot start, has ended or does not answer, pieces are computed in that thread, and it is tried again
    after DIGEST_RESTART_S.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._next_start_s = 0.0

    def compute_piece(self, piece: DigestPiece) -> ComputedPiece:
        """Returns the lanes of a piece, and the processor time that it took, in seconds."""
        try:
            if self._link is None and time.monotonic() >= self._next_start_s:
                with open_child_link() as (ours, theirs):
                    end = theirs.fileno()
                    self._process = start_child_of_thread(
                        "streamd.daemon.streams.digest_process", end, passed=[end], environment=WORKER_ENVIRONMENT
                    )
                ours.settimeout(DIGEST_ANSWER_S)
                self._link = ours
            if self._link is not None:
                self._link.sendall(msgspec.json.encode(piece))
                answer = self._link.recv(_MESSAGE_BYTES)
                if not answer:
                    raise ConnectionResetError("it has ended")
                return _answer_decoder.decode(answer)
        except OSError as error:
            log.warning(
                "daemon.no_digest_process",
                f"no process computes the digests of other users ({error.strerror or error}); the daemon computes them "
                f"itself for {DIGEST_RESTART_S:g} s",
            )
            self.close()
            self._next_start_s = time.monotonic() + DIGEST_RESTART_S
        return compute_piece(piece)

    def close(self) -> None:
        """Ends the process, and waits for its end. A later piece may start it again."""
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    """Computes pieces until the daemon closes its end."""
    correct_inherited_state()
    die_with_parent(os.getppid())
    os.nice(DIGEST_NICENESS)
    raise_oom_score()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the daemon, with which it ends
    with socket.socket(fileno=int(sys.argv[1])) as link:
        while message := link.recv(_MESSAGE_BYTES):
            link.sendall(msgspec.json.encode(compute_piece(_piece_decoder.decode(message))))


if __name__ == "__main__":
    main()
