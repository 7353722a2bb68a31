"""Makes a configuration in a process that ends: `python -m streamd.daemon.starter.process REQUEST`.

Tables and lists of all samples take libraries and memory that a daemon does not need afterwards. The request is JSON.
The process writes the configuration as JSON to standard output, or else what is wrong with the data.
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
from streamd.core.stderr_guard import child_stderr
from streamd.daemon.starter.starter_config import ImageSize, LoggedProgress, build_unwritten_config
from streamd.daemon.starter.survey import StarterChoices
from streamd.dataset.layouts import Settings
from streamd.errors import ConfigError, StreamdError
from streamd.ipc import inherited_state


class _StarterRequest(msgspec.Struct):
    """What to make a configuration of, and how the process logs; it ends with the process `parent`."""

    path: Path
    size: ImageSize | None
    choices: StarterChoices
    level: int
    form: list[str]  # of the log: see `log.output_arguments`
    parent: int


_request_decoder: Final = msgspec.json.Decoder(_StarterRequest, dec_hook=lambda kind, value: kind(value))


def build_config_in_process(path: Path, size: ImageSize | None, choices: StarterChoices, *, level: int) -> Settings:
    """Makes the configuration of the data at `path`, in a process that ends. Raises ConfigError.

    The process logs its progress to standard error, at `level`, in the form of this one. Ctrl-C ends it, too.
    """
    request = _StarterRequest(path, size, choices, level, log.output_arguments(), os.getpid())
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "streamd.daemon.starter.process"),
            msgspec.json.encode(request, enc_hook=os.fspath).decode(),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=child_stderr(),
        check=False,
    )
    if done.returncode:
        status, text = done.returncode, done.stdout.decode(errors="replace")
        if not text and status > 0:
            text = f"making a configuration failed with status {status}"
        elif not text:
            text = (
                f"making a configuration was ended by {signal.Signals(-status).name}: by a user, or for lack of "
                "memory; write a configuration with streamd init, and serve that one"
            )
        raise ConfigError(text)
    settings: Settings = msgspec.json.decode(done.stdout)
    return settings


def main() -> None:
    """Writes the configuration to standard output; on failure what is wrong with the data, and exits with a status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback; the command prints the message
    request = _request_decoder.decode(sys.argv[1])
    inherited_state.die_with_parent(request.parent)
    inherited_state.raise_oom_score()
    log.configure_logging(
        level=max(request.level, log.NOTICE), as_json="json" in request.form, to_journal="journal" in request.form
    )
    try:
        settings = build_unwritten_config(request.path, request.size, LoggedProgress(), request.choices)
    except StreamdError as error:
        sys.stdout.write(str(error))
        sys.exit(error.exit_status)
    sys.stdout.buffer.write(msgspec.json.encode(settings))


if __name__ == "__main__":
    main()
