"""Makes a configuration in a process that ends: `python -m streamd.daemon.starter.process PATH SIZE LEVEL PID [json]`.

Tables and lists of all samples take libraries and memory that a daemon does not need afterwards. SIZE is HEIGHTxWIDTH,
or - for none. PID is the starting command's, and the process ends with it. It writes the configuration as JSON to
standard output, or else what is wrong with the data.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from streamd.core import log
from streamd.daemon.starter.data_survey import Settings
from streamd.daemon.starter.starter_config import ImageSize, LoggedProgress, build_unwritten_config
from streamd.errors import ConfigError, StreamdError
from streamd.ipc import parent_death

_NO_SIZE: Final = "-"


def build_config_in_process(path: Path, size: ImageSize | None, *, level: int, as_json: bool) -> Settings:
    """Makes the configuration of the data at `path`, in a process that ends. Raises ConfigError.

    The process logs its progress to standard error, at `level`, in JSON if `as_json`. Ctrl-C ends it, too.
    """
    spelled = _NO_SIZE if size is None else f"{size[0]}x{size[1]}"
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "streamd.daemon.starter.process", str(path), spelled, str(level),
            str(os.getpid()), *(["json"] if as_json else []),
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ConfigError(done.stdout.decode(errors="replace") or _explain_process_exit(done.returncode))
    settings: Settings = msgspec.json.decode(done.stdout)
    return settings


def _explain_process_exit(status: int) -> str:
    if status >= 0:
        return f"making a configuration failed with status {status}"
    return (
        f"making a configuration was ended by {signal.Signals(-status).name}: by a user, or for lack of memory; write "
        "a configuration with streamd init, and serve that one"
    )


def main() -> None:
    """Writes the configuration to standard output; on failure what is wrong with the data, and exits with a status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback; the command prints the message
    path, spelled, level, parent, *form = sys.argv[1:]
    parent_death.die_with_parent(int(parent))
    parent_death.raise_oom_score()
    log.configure_logging(level=max(int(level), log.NOTICE), as_json="json" in form)
    height, _, width = spelled.partition("x")
    size = None if spelled == _NO_SIZE else (int(height), int(width))
    try:
        settings = build_unwritten_config(Path(path), size, LoggedProgress())
    except StreamdError as error:
        sys.stdout.write(str(error))
        sys.exit(error.exit_status)
    sys.stdout.buffer.write(msgspec.json.encode(settings))


if __name__ == "__main__":
    main()
