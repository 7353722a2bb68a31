"""Folders that belong to one training."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

CLAIM = dedent(
    """
    import os, shutil, sys
    from pathlib import Path
    from streamd.errors import ConfigError
    from streamd.frameworks.checkpoint import claim_folder
    folder, running = Path(sys.argv[1]), {"first", "second"}
    def first():
        return "first" in running
    def second():
        return "second" in running
    def attempt(is_at_work=first, folder=folder):
        try:
            claim_folder(folder, is_at_work)
        except ConfigError as error:
            return str(error)
        return "claimed"
    """
)
OTHER_PROCESS = "another trainer saves in {}: give each one, and each rank, a folder of its own"
OTHER_FIT = "another fit of this process saves in {}: give each one a folder of its own"


def outcomes(folder: Path, program: str) -> list[str]:
    """What a process prints that claims a folder."""
    command = [sys.executable, "-u", "-c", CLAIM + dedent(program), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def attempts(folder: Path) -> list[str]:
    """What another process hears that claims a folder, claims it again, and whose child claims it."""
    return outcomes(
        folder,
        """
        print(attempt())
        print(attempt())
        if os.fork() == 0:
            print(attempt(), flush=True)
            os._exit(0)
        os.wait()
        """,
    )


@pytest.mark.long
def test_a_folder_belongs_to_the_process_that_claimed_it_and_not_to_its_child(tmp_path: Path) -> None:
    refused = OTHER_PROCESS.format(tmp_path)
    assert attempts(tmp_path) == ["claimed", "claimed", refused]
    with (tmp_path / ".lock").open("rb+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert attempts(tmp_path) == [refused] * 3
    assert attempts(tmp_path)[0] == "claimed"


def test_a_folder_belongs_to_one_fit_of_a_process_as_long_as_that_runs(tmp_path: Path) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    assert outcomes(
        folder,
        """
        print(attempt())
        print(attempt(second))
        print(attempt(second, folder.parent / "link"))
        print(attempt(second, folder.parent))
        running.remove("first")
        print(attempt(second))
        running.add("first")
        print(attempt(first))
        """,
    ) == ["claimed", OTHER_FIT.format(folder), OTHER_FIT.format(link), "claimed", "claimed", OTHER_FIT.format(folder)]


def test_a_folder_that_was_removed_and_made_again_is_claimed_anew(tmp_path: Path) -> None:
    assert outcomes(
        tmp_path / "run",
        """
        def child():
            if os.fork() == 0:
                print(attempt(), flush=True)
                os._exit(0)
            os.wait()
        def descriptors():
            return len(os.listdir("/proc/self/fd"))
        folder.mkdir()
        print(attempt())
        before = descriptors()
        shutil.rmtree(folder)
        folder.mkdir()
        print(attempt())
        child()
        print(descriptors() - before)
        """,
    ) == ["claimed", "claimed", OTHER_PROCESS.format(tmp_path / "run"), "0"]


def test_a_lock_that_is_lost_with_another_descriptor_of_its_file_is_taken_again(tmp_path: Path) -> None:
    """POSIX drops a process's lock when that closes any descriptor of the file, as one that copies the folder does."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert outcomes(
        folder,
        """
        def copy():
            shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True)
        def child(ready, wait):
            if os.fork() == 0:
                print(attempt(), flush=True)
                os.write(ready, b"x")
                os.read(wait, 1)
                os._exit(0)
        (heard, ready), (wait, end) = os.pipe(), os.pipe()
        print(attempt())
        copy()
        print(attempt())
        child(ready, wait)
        os.read(heard, 1)
        copy()
        child(ready, wait)
        os.read(heard, 1)
        print(attempt())
        os.write(end, b"xx")
        os.wait(), os.wait()
        print(attempt())
        """,
    ) == ["claimed", "claimed", OTHER_PROCESS.format(folder), "claimed", OTHER_PROCESS.format(folder), "claimed"]
