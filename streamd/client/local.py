"""`streamd.local`: a private daemon for a notebook, a script or a test. It ends with the process that started it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from streamd.client import Client
from streamd.client.arguments import (
    check_local_system,
    convert_whole_number,
    format_argument,
    parse_patience,
    parse_timeout,
)
from streamd.core.host import make_temporary_folder
from streamd.core.stderr_guard import StderrWriter
from streamd.core.text import escape_unprintable
from streamd.errors import ConfigError, ConnectError, StreamdError
from streamd.ipc import endpoint
from streamd.ipc.local_daemon import (
    LOCAL_STOP_S,
    READY_LINE,
    REFUSED_LINE,
    LifeLock,
    LocalDaemonRequest,
    endpoint_in_folder,
)
from streamd.limits import CONNECT_TIMEOUT_S

_SHORT_FOLDER: Final = "/tmp"  # noqa: S108 - mkdtemp makes a folder there that other users cannot enter
_KEPT_LINES: Final = 5  # last lines of the daemon's stderr, which the error about its end repeats
_READ_BYTES: Final = 4096  # bytes read at a time, and kept of each line

_CONFIG_REMEDY: Final = (
    "give streamd.local the path of a config.yaml, of a folder of images, of a table or of tars, or a mapping"
)

ImageSize = int | Sequence[int]  # the side of a square, or (height, width)
LocalConfig = str | os.PathLike[str] | Mapping[str, object]


def local(
    config: LocalConfig,
    *,
    size: ImageSize | None = None,
    root: str | os.PathLike[str] | None = None,
    label: str | Sequence[str] | None = None,
    encoding: str | None = None,
    timeout: float = CONNECT_TIMEOUT_S,
    patience: float | None = None,
) -> LocalClient:
    """Starts a private daemon and returns its client, once the daemon is ready to serve.

    config: the path of a config.yaml, a mapping with the same content, or the path of data: a folder of images, with
        masks of the same names or without, a table (.csv, .tsv, .parquet), tars, YOLO's data.yaml, or a COCO file. Data
        are served with the configuration that `streamd init` would write. `listen` and `monitor` of a configuration are
        ignored. Relative paths in a file are relative to the file, those in a mapping to the current folder.
    size: for data, the size of the images, N or (height, width). Default: the pictures' own size if all are equal,
        else 224.
    root: for a table or a COCO file, the folder of the files that it names.
    label: for a table, the column or columns that are labels. Default: all that look like labels.
    encoding: for a table, the encoding of its text, such as "cp1252".
    timeout, patience: as in `streamd.connect`.

    The samples are listed each time, so the daemon sees the files as they are now. Closing the client ends the daemon;
    so does the end of this process, however it comes. Warnings of the daemon go to stderr, and so does what `streamd
    init` would print about the data. If the daemon ends by itself or is killed, every wait raises a ConnectError with
    the exit status or signal and the last lines of its stderr.

    Raises ConfigError for an invalid configuration or invalid data.
    """
    check_local_system()
    given, wanted = _parse_config(config), _parse_size(size, config)
    timeout_s, patience_s = parse_timeout(timeout), parse_patience(patience)
    for name, value in {"root": root, "label": label, "encoding": encoding}.items():
        if value is not None and isinstance(config, Mapping):
            raise ConfigError(
                f"{name}={value!r} is for a path of data, but a mapping is given; write it in the mapping"
            )
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    files = None if root is None else os.path.abspath(os.path.expanduser(os.fsdecode(root)))  # noqa: PTH100, PTH111 - links stay as they are
    # The socket and the manifests lie in the default place, or in /tmp if the socket's path would be too long there:
    # the kernel limits its length.
    folder = make_temporary_folder("streamd-")
    if not endpoint.fits_socket_path(endpoint.socket_path(endpoint_in_folder(str(folder)))):
        folder.rmdir()
        folder = make_temporary_folder("streamd-", _SHORT_FOLDER)
    errand = LocalDaemonRequest(given, str(folder), wanted, files, labels, encoding)
    try:
        helper = _LocalDaemon(errand)
    except BaseException:
        shutil.rmtree(errand.folder)
        raise
    try:
        helper.wait_until_ready()
    except BaseException:
        helper.stop()
        raise
    client = LocalClient(helper, errand, timeout_s, patience_s)
    client.streams()  # its repr then names the streams
    return client


def _parse_config(config: object) -> str | dict[str, object]:
    """A mapping, or the absolute path of something that is there. Raises ConfigError."""
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, str | bytes | os.PathLike) or not os.fspath(config):
        raise ConfigError(f"{format_argument('config', config)}: {_CONFIG_REMEDY}")
    path = os.path.expanduser(os.fsdecode(config))  # noqa: PTH111 - links stay as they are
    try:
        path = os.path.abspath(path)  # noqa: PTH100 - as above; raises where the working directory was removed
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a zero byte
        raise ConfigError(f"{path!r}: there is no such file or folder; {_CONFIG_REMEDY}") from error
    except OSError:
        return path  # the daemon says why it cannot be read
    return path


def _parse_size(size: ImageSize | None, config: LocalConfig) -> tuple[int, int] | None:
    """Returns (height, width). Raises ConfigError for an invalid size, and for a size given with a mapping."""
    if size is None:
        return None
    if isinstance(config, Mapping):
        raise ConfigError(
            f"size={size!r} is for a path of data, but a mapping is given; write image: {{size: [height, width]}} in "
            "the mapping"
        )
    given = [convert_whole_number(side) for side in (size if isinstance(size, Sequence) else (size, size))]
    sides = [side for side in given if side is not None and side >= 1]
    if not len(given) == len(sides) == 2:  # noqa: PLR2004 - height and width
        raise ConfigError(f"size={size!r}: give a number of pixels, or (height, width), such as 128 or (66, 200)")
    return sides[0], sides[1]


class _LocalDaemon:
    """The daemon's process, its folder, and a thread that reads its output until the process has ended.

    The thread sees the end of the process at once, through a pidfd, and removes the folder: after a kill, the daemon
    cannot do it. It waits for no end of a pipe, which forked children of either process may keep open.
    """

    def __init__(self, request: LocalDaemonRequest) -> None:
        self._request = request
        self._owner_pid = os.getpid()
        self._life = LifeLock(request.encode())
        command = [sys.executable, "-P", "-m", "streamd.daemon.embedded", str(self._life.descriptor)]
        environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}  # as `streamd serve` has it
        try:
            # The daemon has its own session, so Ctrl-C reaches only the script.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, pass_fds=[self._life.descriptor], env=environment,
            )  # fmt: skip
        except BaseException:
            self._life.release()
            raise
        self.pid = self._process.pid
        self._stderr = StderrWriter()  # whoever reads this process's stderr must not keep `close` waiting
        self._answer = b""
        self._has_answered = threading.Event()  # it is ready, or has ended
        self._last_lines: deque[bytes] = deque([b""], _KEPT_LINES + 1)  # the last one may still be incomplete
        # Guards `_fail_client` and `_end_error`: the client is told of the end once, whichever of them is set first.
        self._lock = threading.Lock()
        self._fail_client: Callable[[], Callable[[StreamdError], None] | None] = lambda: None
        self._end_error: ConnectError | None = None
        self._thread = threading.Thread(target=self._watch_process, name="streamd-private", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Waits without a time limit until the daemon serves, since listing samples may take long.

        Raises ConfigError if the daemon refuses its configuration, StreamdError if it ends for another reason.
        """
        self._has_answered.wait()
        if self._answer == READY_LINE:
            return
        kind = ConfigError if self._answer.startswith(REFUSED_LINE) else StreamdError
        raise kind(
            self._answer.removeprefix(REFUSED_LINE).decode(errors="replace").strip()
            or f"the private daemon ended {self._describe_end()}"
        )

    def set_client_to_notify(self, fail: Callable[[StreamdError], None]) -> None:
        """Calls a client's method `fail` when the daemon ends, at once if it has ended already."""
        with self._lock:
            self._fail_client = weakref.WeakMethod(fail)
            if self._end_error is not None:
                fail(self._end_error)

    def stop(self) -> None:
        """Ends the daemon; kills it if it has not ended after `LOCAL_STOP_S`.

        Does nothing in a forked child, whose copy of the client must not end its parent's daemon.
        """
        if os.getpid() != self._owner_pid:
            return
        self._life.release()
        try:
            self._process.wait(LOCAL_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # The thread itself gets here when it holds the last reference to a client, whose finaliser calls this.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread

    def _watch_process(self) -> None:
        pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        try:
            death = os.pidfd_open(self._process.pid)
        except ProcessLookupError:  # it has ended already, and this process ignores SIGCHLD
            death = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # always readable
        poller = select.poll()
        for descriptor in (death, *(pipe.fileno() for pipe in pipes)):
            poller.register(descriptor, select.POLLIN)
        try:
            while death not in (ready := [descriptor for descriptor, _ in poller.poll()]):
                for each in ready:
                    if not self._read_output(each):
                        poller.unregister(each)  # every writer has closed the pipe
            # The daemon has ended, but workers that are still ending keep the pipes open: read what is there, and do
            # not wait for their end.
            for pipe in pipes:
                os.set_blocking(pipe.fileno(), False)
                while self._read_output(pipe.fileno()):
                    pass
        finally:
            os.close(death)
            for pipe in pipes:
                pipe.close()
            self._stderr.close()
        shutil.rmtree(self._request.folder, ignore_errors=True)  # the daemon may have removed it already
        why = (
            f"the private daemon of this process, pid {self.pid}, ended {self._describe_end()}; call streamd.local "
            "again: to continue a stream, pass its token as resume="
        )
        with self._lock:
            self._end_error = ConnectError(self._request.endpoint, why)
            fail = self._fail_client()
        if fail is not None:
            fail(self._end_error)
        self._has_answered.set()

    def _read_output(self, descriptor: int) -> bool:
        """Keeps the daemon's answer, or copies its stderr to ours; False at the end of a pipe, or if it is empty."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if self._process.stdout is not None and descriptor == self._process.stdout.fileno():
            self._answer += data
            if self._answer == READY_LINE:
                self._has_answered.set()
            return bool(data)
        first, *others = data.split(b"\n")
        self._last_lines[-1] = (self._last_lines[-1] + first)[-_READ_BYTES:]
        self._last_lines.extend(others)
        # Python has no stderr where the descriptor was closed at the start: it may be any file's number by now.
        if data and sys.__stderr__ is not None:
            self._stderr.write(data)
        return bool(data)

    def _describe_end(self) -> str:
        """Waits for the process's end, and returns how it ended and what it said last."""
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # the kernel then keeps no child's exit status
            how = "in a way that is not known, since this process ignores SIGCHLD"
        said = b" | ".join(line.strip() for line in self._last_lines if line.strip()).decode(errors="replace")
        return f"{how}; it last said: {escape_unprintable(said)}" if said else how


class LocalClient(Client):
    """A client with a private daemon, which ends with the client. Made by `streamd.local`."""

    def __init__(
        self, daemon: _LocalDaemon, request: LocalDaemonRequest, timeout_s: float, patience_s: float | None
    ) -> None:
        super().__init__(request.endpoint, timeout_s, patience_s)
        self.pid = daemon.pid
        self._stop_daemon = weakref.finalize(self, daemon.stop)
        daemon.set_client_to_notify(self._fail_all_streams)

    def close(self) -> None:
        """Closes every stream opened through this client, and ends the daemon."""
        super().close()
        self._stop_daemon()
