"""The box itself: a systemd of its own, that leaves nothing behind, and says what it lacks. Boxes fit into boxes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.systemd_box import LIMIT_S, ROOT

pytestmark = [pytest.mark.systemd, pytest.mark.usefixtures("installed")]

BOX = str(ROOT / "scripts" / "systemd-box")


def boxed(*command: str, before: tuple[str, ...] = (), said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, BOX, *command], input=said, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


def test_a_command_has_systemd_as_its_first_process_and_its_own_status_and_input() -> None:
    done = boxed("bash", "-c", "cat /proc/1/comm -; exit 7", said="heard")
    assert (done.returncode, done.stdout) == (7, "systemd\nheard")


def test_what_is_installed_in_a_box_is_gone_with_it() -> None:
    places = ("/etc/left", "/var/left", "/usr/local/left", "/tmp/left", "/run/left")  # noqa: S108 - the box's own
    assert boxed("touch", *places).returncode == 0
    assert not any(Path(place).exists() for place in places)
    assert not list(Path("/run").glob("systemd-box.*"))


def test_who_cannot_have_a_box_is_told_what_it_needs() -> None:
    done = boxed("true", before=("setpriv", "--reuid=65534", "--clear-groups"))
    assert done.returncode == 125
    assert done.stderr == (
        "systemd-box: this is not root; it needs root, systemd, util-linux, overlayfs and cgroup v2\n"
    )
