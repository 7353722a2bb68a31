"""Folders that belong to one process."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

CLAIM = dedent(
    """
    import os, sys
    from pathlib import Path
    from streamd.errors import ConfigError
    from streamd.frameworks.claim import claim
    def attempt():
        try:
            claim(Path(sys.argv[1]))
        except ConfigError as error:
            return str(error)
        return "claimed"
    print(attempt())
    print(attempt())
    if os.fork() == 0:
        print(attempt(), flush=True)
        os._exit(0)
    os.wait()
    """
)


def attempts(folder: Path) -> list[str]:
    """What another process hears that claims a folder, claims it again, and whose child claims it."""
    command = [sys.executable, "-u", "-c", CLAIM, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_folder_belongs_to_the_process_that_claimed_it_and_not_to_its_child(tmp_path: Path) -> None:
    refused = f"another trainer saves in {tmp_path}: give each one, and each rank, a folder of its own"
    assert attempts(tmp_path) == ["claimed", "claimed", refused]
    with (tmp_path / ".lock").open("rb+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert attempts(tmp_path) == [refused] * 3
    assert attempts(tmp_path)[0] == "claimed"
