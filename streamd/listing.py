"""Listing the samples, in a process that ends: `python -m streamd.listing CONFIG STATE`.

Reading a large table takes libraries and memory that the daemon does not need afterwards.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from streamd import logs
from streamd.catalog import list_samples
from streamd.config import load
from streamd.errors import ConfigError, StreamdError

_PROGRESS_S = 2.0  # between two lines about a long listing


async def list_apart(config: Path, state: Path) -> None:
    """Lists the samples of all streams of `config` into manifests in `state`. Raises ConfigError.

    Cancelling it ends the process; a manifest is written whole or not at all.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "streamd.listing", str(config), str(state),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise ConfigError(said.decode() or f"listing the samples failed with status {process.returncode}")


class _Listing:
    """Says now and then how far a long listing has come."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()

    def progress(self, stream: str, files: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._said_s + _PROGRESS_S:
            self._said_s = now_s
            logs.info("manifest.listing", "listing the samples", stream=stream, files=files)


def main() -> None:
    """Lists, and says on standard output what is wrong with the data if anything is."""
    config, state = map(Path, sys.argv[1:])
    logs.configure()
    try:
        list_samples(load(config), state, _Listing().progress)
    except StreamdError as error:
        sys.stdout.write(str(error))
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
