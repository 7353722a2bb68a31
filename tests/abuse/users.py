"""Users of a machine, by number alone, and commands that run as them.

A user may be unable to reach the Python of these tests, for example in the home of another user. Its processes then
get a mount namespace of their own, in which closed folders above that Python are open and hold nothing else.
"""

from __future__ import annotations

import atexit
import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
GROUP: Final = 61100  # the users that may reach the daemon's socket

# $1 is a folder to mount at, then pairs of a closed folder and what lies beneath it, then `--` and the command.
_OPEN_FOLDERS: Final = """
set -e
hold=$1; shift
mount -t tmpfs none "$hold"
pairs=""
while [ "$1" != -- ]; do
    mkdir -p "$hold$2"; mount --rbind "$2" "$hold$2"
    pairs="$pairs $1 $2"; shift 2
done
shift
for folder in $(printf '%s\\n' $pairs | awk 'NR % 2' | sort -u); do mount -t tmpfs -o mode=755 none "$folder"; done
set -- $pairs -- "$@"
while [ "$1" != -- ]; do mkdir -p "$2"; mount --move "$hold$2" "$2"; shift 2; done
shift
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class User:
    """A user, and whether it belongs to the group."""

    uid: int
    is_member: bool = True

    def build_prefix(self) -> list[str]:
        """Returns the command that runs another one as this user; that one must be run by root."""
        groups = ["--groups", str(GROUP)] if self.is_member else ["--clear-groups"]
        drop = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--reuid",
            str(self.uid),
            "--regid",
            str(GROUP if self.is_member else self.uid),
            *groups,
        ]
        closed = find_closed_folders()
        if not closed:
            return drop
        pairs = [str(path) for pair in closed for path in pair]
        return ["unshare", "--mount", "sh", "-c", _OPEN_FOLDERS, "sh", _make_mount_point(), *pairs, "--", *drop]

    def own(self, *paths: Path) -> None:
        """Gives files to this user and the group."""
        for path in paths:
            os.chown(path, self.uid, GROUP)


# The kernel bounds watches, tasks and descriptors in flight for each user: tests that run at a time have users each.
_FIRST_UID: Final = 61001 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
OWNER: Final = User(_FIRST_UID)  # runs the daemon
NEIGHBOUR: Final = User(_FIRST_UID + 1)  # trains
ATTACKER: Final = User(_FIRST_UID + 2)
NEWCOMER: Final = User(_FIRST_UID + 3)  # comes when the attack is over
STRANGER: Final = User(_FIRST_UID + 4, is_member=False)


@cache
def _make_mount_point() -> str:
    """Returns an empty folder that goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="abuse-mounts-")
    atexit.register(Path(folder).rmdir)
    return folder


def check_that_users_can_be_had() -> None:
    """Raises AssertionError, with the remedy, where this process cannot start others as other users."""
    assert os.geteuid() == 0, "abuse tests start processes of five users: run them as root, or in scripts/systemd-box"


def find_closed_folders() -> list[tuple[Path, Path]]:
    """Returns pairs: the first folder on the way that is closed to others, and what they need beneath it."""
    found = {}
    for needed in (Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT):
        for folder in reversed(needed.parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                found[needed] = folder
                break
    return [(folder, needed) for needed, folder in found.items()]
