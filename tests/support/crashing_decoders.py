"""Decoders that crash and reads that hang, on purpose: a `sitecustomize` that the daemon and its workers import.

A file says by its last bytes what is to happen when it is decoded. Nothing of this is in the product.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from pathlib import Path
from typing import Final

SEGV: Final = b"\0crash: SIGSEGV"
ABRT: Final = b"\0crash: SIGABRT"
FPE: Final = b"\0crash: SIGFPE"
HANG: Final = b"\0hang"
EAT: Final = b"\0eat memory"
KILLED: Final = b"\0killed"  # by the signals that `kill` names, in their order, one a decoding

_WORKER: Final = """
    import os, signal, threading
    import numpy
    import streamd.dataset.paths.open_beneath as open_beneath
    import streamd.decode.decoders as decode

    decode_image, read_file = decode.decode_image, open_beneath.read_file

    def broken_decode(data, row, image, draw=None):
        for name in ("SIGSEGV", "SIGABRT", "SIGFPE"):
            if data.endswith(b"crash: " + name.encode()):
                os.kill(os.getpid(), getattr(signal, name))
        if data.endswith(b"killed") and (left := kills()):
            os.truncate(HERE + "/kills", len(left) - 1)
            os.kill(os.getpid(), left[-1])
        if data.endswith(b"hang"):
            threading.Event().wait()
        held = []
        while data.endswith(b"eat memory"):
            held.append(numpy.empty(64 << 20, numpy.uint8))  # taken, not touched
        return decode_image(data, row, image, draw)

    def kills():
        return open(HERE + "/kills", "rb").read() if os.path.exists(HERE + "/kills") else b""

    def broken_read(root, name, size, mtime_ns):
        if os.path.exists(HERE + "/gate"):
            open(HERE + "/gate", "rb").close()
        return read_file(root, name, size, mtime_ns)

    decode.decode_image, open_beneath.read_file = broken_decode, broken_read
"""
_DAEMON: Final = """
    import streamd.limits as limits
    limits.ROW_DEADLINE_S = DEADLINE_S
    limits.WORKER_RESPAWN_S, limits.WORKER_RESPAWN_MAX_S = 0.01, 0.1
    if os.path.exists(HERE + "/kills"):
        limits.TASK_GIVE_UP_S = 0.0
    if os.path.exists(HERE + "/fatal verdict"):
        import signal
        import streamd.daemon.streams.quarantine as quarantine
        record_verdicts = quarantine.Quarantine.append_new_bad_samples

        def fatal(self, verdicts):
            new = record_verdicts(self, verdicts)
            if new:
                os.remove(HERE + "/fatal verdict")
                os.kill(os.getpid(), signal.SIGKILL)
            return new

        quarantine.Quarantine.append_new_bad_samples = fatal
"""


class Broken:
    """What goes wrong in the processes that are started with `environment`; the deadline of a row is settable."""

    def __init__(self, place: Path, deadline_s: float = 30.0) -> None:
        place.mkdir()
        self._place = place
        parts = [f"import os, sys\nHERE, DEADLINE_S = {str(place)!r}, {deadline_s}\n"]
        for module, code in (("streamd.worker", _WORKER), ("serve", _DAEMON)):
            parts.append(f"if {module!r} in sys.orig_argv:\n{textwrap.indent(textwrap.dedent(code), '    ')}")
        (place / "sitecustomize.py").write_text("\n".join(parts))

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join([str(self._place), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])}

    def hang_reads(self) -> None:
        """From now on every read of a file waits."""
        os.mkfifo(self._place / "gate")

    def let_reads_go(self) -> None:
        """Lets the waiting reads continue; later reads do not wait."""
        (self._place / "gate").rename(self._place / "open gate")
        with contextlib.suppress(OSError):  # nobody waits
            os.close(os.open(self._place / "open gate", os.O_WRONLY | os.O_NONBLOCK))

    def kill(self, *signals: int) -> None:
        """Each decoding of a file that ends in KILLED ends its process by the next of these signals, if any is left."""
        (self._place / "kills").write_bytes(bytes(reversed(signals)))

    @property
    def kills_left(self) -> int:
        return (self._place / "kills").stat().st_size

    def die_of_the_next_verdict(self) -> None:
        """The daemon that starts next is killed when a verdict is on disk and nothing has used it."""
        (self._place / "fatal verdict").touch()


def mark(path: Path, what: bytes) -> None:
    """Lets a sound image do something when it is decoded; before it is listed."""
    with path.open("ab") as file:
        file.write(what)
