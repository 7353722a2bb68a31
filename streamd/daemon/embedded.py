"""The daemon behind `streamd.local`, which ends with its owner: `python -m streamd.daemon.embedded LIFE`.

LIFE is the descriptor of its owner's LifeLock, a file with what to serve. The release of the lock stops the daemon.
Standard output carries one line back: that it serves, or why it does not.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from streamd.errors import ConfigError, MissingExtraError, StreamdError
from streamd.ipc.inherited_state import correct_inherited_state
from streamd.ipc.local_daemon import LOCAL_STOP_S, READY_LINE, REFUSED_LINE, LocalDaemonRequest, wait_for_release

if TYPE_CHECKING:
    from streamd.config.load import ConfigInput

_request_decoder: Final = msgspec.json.Decoder(LocalDaemonRequest)
_STDOUT, _STDERR = 1, 2


def choose_config_source(request: LocalDaemonRequest) -> ConfigInput:
    """Returns the requested configuration, or one made from the data that the request names. Raises ConfigError."""
    from streamd.daemon.starter.starter_config import LoggedProgress, build_unwritten_config  # noqa: PLC0415 - a missing library is reported in our words
    from streamd.daemon.starter.survey import (  # noqa: PLC0415 - as above
        CONFIG_REMEDY,
        PATH_KEY,
        StarterChoices,
        names_configuration,
        names_data,
    )

    if isinstance(request.config, dict):
        return request.config
    path = Path(request.config)
    if request.size is not None and names_configuration(path):
        raise ConfigError(
            f"size is for a path of data, and {path} is a configuration; write image: {{size: [height, width]}} in it"
        )
    choices = StarterChoices(None if request.root is None else Path(request.root), request.labels, request.encoding)
    is_chosen = choices != StarterChoices()
    if is_chosen and names_configuration(path):
        raise ConfigError(
            f"root, label and encoding are for a path of data, and {path} is a configuration; write them in it"
        )
    if request.size is None and not is_chosen and not names_data(path):
        return path
    try:
        return build_unwritten_config(path, request.size, LoggedProgress(), choices)
    except ConfigError as error:
        # Callers of streamd.local do not write the arguments of a command, so the error does not name them.
        text = (
            str(error).removeprefix(f"{PATH_KEY}: ").replace(CONFIG_REMEDY, "give streamd.local the path of that file")
        )
        raise ConfigError(re.sub(r"--(root|label|encoding)\b", r"\1=", text)) from error


def _run_daemon(request: LocalDaemonRequest) -> int:
    """Serves, and returns an exit status. Writes an error to standard output, or to stderr after READY_LINE."""
    error_output = sys.stdout

    def write_ready_line() -> None:
        nonlocal error_output
        sys.stdout.buffer.write(READY_LINE)
        sys.stdout.flush()
        os.dup2(_STDERR, _STDOUT)  # nobody reads more answers, and what a library prints would fill the pipe
        error_output = sys.stderr

    try:
        # A mistake in the configuration is found before the daemon is loaded, which takes three times as long.
        from streamd.config.load import load_config  # noqa: PLC0415 - as above

        if isinstance(request.config, dict):
            load_config(request.config)
        else:
            from streamd.daemon.starter.survey import names_configuration  # noqa: PLC0415 - as above

            if names_configuration(Path(request.config)):
                load_config(request.config)
        from streamd.core import log  # noqa: PLC0415 - as above

        log.configure_logging(level=log.NOTICE)
        source = choose_config_source(request)
        from streamd.daemon.daemon import Daemon  # noqa: PLC0415 - as above
        from streamd.daemon.start_libraries import check_worker_libraries  # noqa: PLC0415 - as above

        check_worker_libraries("streamd.local")
        state = Path(request.folder) / "state"
        daemon = Daemon(source, state=state, rescan=True, address=request.endpoint, on_ready=write_ready_line)
        asyncio.run(daemon.run())
    except ModuleNotFoundError as error:
        failure: StreamdError = MissingExtraError(error.name or "a library", "serve", "streamd.local")
    except StreamdError as error:
        failure = error
    else:
        return 0
    if isinstance(failure, ConfigError) and error_output is sys.stdout:
        sys.stdout.write(REFUSED_LINE.decode())
    error_output.write(str(failure))
    return failure.exit_status


def _end_with_owner(life: int, folder: str) -> None:
    """Waits, in a thread, for the end of the owner, then stops this process; ends it if it is stuck."""
    wait_for_release(life)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LOCAL_STOP_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Runs the process: reads the request, serves it, and removes its folder."""
    correct_inherited_state()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # until the daemon's loop handles it
    life = int(sys.argv[1])
    os.set_inheritable(life, False)
    request = _request_decoder.decode(Path(f"/proc/self/fd/{life}").read_bytes())
    threading.Thread(target=_end_with_owner, args=(life, request.folder), name="owner", daemon=True).start()
    # systemd-tmpfiles leaves a locked folder alone, however old the files in it are.
    with suppress(OSError):  # a file system without locks
        fcntl.flock(os.open(request.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_SH)
    try:
        status = _run_daemon(request)
    finally:
        shutil.rmtree(request.folder, ignore_errors=True)  # the other process may remove it at the same time
    sys.exit(status)


if __name__ == "__main__":
    main()
