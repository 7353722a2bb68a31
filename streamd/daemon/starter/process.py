"""Makes a configuration in a process that ends: `python -m streamd.daemon.starter.process PATH SIZE LEVEL PID [json]`.

Tables, and lists of all samples, take libraries and memory that a daemon does not need afterwards. SIZE is
HEIGHTxWIDTH, or - for none; PID is the command's, and the process ends with it. The configuration comes as JSON on
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
    """The configuration of the data at `path`. Raises ConfigError.

    How far it has come is logged on standard error, as `level` and `as_json` say. A Ctrl-C ends the process, too.
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
        f"making a configuration was ended by {signal.Signals(-status).name}: by somebody, or for want of memory; "
        "write one with streamd init, and serve that"
    )


def main() -> None:
    """Makes it, and says on standard output what it is, or what is wrong with the data."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the terminal's Ctrl-C is for the command, which says what there is
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
