"""Lists the samples in a process that ends, since large tables take libraries and memory that a daemon does not need.

    python -m streamd.daemon.streams.listing_process STATE LEVEL all|new [json|journal]

It reads the configuration from standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from streamd.config.load import ConfigInput, add_error_locations, load_config
from streamd.core import log
from streamd.daemon.streams.catalog import (
    build_lock_paths,
    find_unlisted_streams,
    make_state_folder,
    write_sample_manifests,
)
from streamd.daemon.streams.manifest_locks import hold_exclusive_locks, hold_listing_turns
from streamd.errors import StreamdError
from streamd.ipc.child import check_result, start_child
from streamd.ipc.inherited_state import die_with_parent, raise_oom_score

_PROGRESS_S = 2.0  # between two lines about a long listing


async def list_samples_in_process(config: ConfigInput, state: Path, *, list_again: bool = False) -> None:
    """Lists samples into manifests in `state`: of the streams without a manifest, or of all streams if `list_again`.

    Waits for other processes that list the same samples. Raises ConfigError, also while another daemon serves a list
    that would be replaced.

    Cancelling it kills the process; a manifest is written whole or not at all.
    """
    process = await start_child(
        "streamd.daemon.streams.listing_process",
        state,
        log.current_level(),
        "all" if list_again else "new",
        *log.output_arguments(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate(msgspec.json.encode(config, enc_hook=os.fspath))
    except asyncio.CancelledError:
        # Its locks end with it, so it is waited for: the next listing must not find them held.
        process.kill()
        await process.wait()
        raise
    causes = "by a user, for lack of memory, or because of a damaged LMDB or HDF5 file: write that file again"
    check_result("listing the samples", process.returncode or 0, output, causes)


class ListingLog:
    """Logs the progress of a long listing every two seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_log_s = clock()

    def update_listing(self, stream: str, files: int) -> None:
        """Logs how many files of a stream have been listed so far."""
        if self._claim_due_log():
            log.notice("manifest.listing", "listing the samples", stream=stream, files=files)

    def _claim_due_log(self) -> bool:
        now_s = self._clock()
        if now_s < self._last_log_s + _PROGRESS_S:
            return False
        self._last_log_s = now_s
        return True


def main() -> None:
    """Lists the samples; on failure writes what is wrong with the data to standard output, and exits with a status."""
    die_with_parent(os.getppid())  # it holds locks, and may list for hours
    raise_oom_score()
    state, level, list_again = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "all"
    log.configure_logging(level=level, as_json="json" in sys.argv[4:], to_journal="journal" in sys.argv[4:])
    try:
        config = load_config(msgspec.json.decode(sys.stdin.buffer.read()))
        with add_error_locations(config):
            make_state_folder(state)
            locks = build_lock_paths(config, state)
            with hold_listing_turns(locks.values()):
                # Another process may have listed them while this one waited, so the question is asked under the turn.
                names = frozenset(config.streams) if list_again else find_unlisted_streams(config, state)
                with hold_exclusive_locks(locks, names):
                    if names:
                        write_sample_manifests(config, state, ListingLog().update_listing, names=names)
    except StreamdError as error:
        sys.stdout.write(str(error))
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
