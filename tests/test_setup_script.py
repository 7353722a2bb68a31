"""How scripts/setup.sh gets the programs that Python's packages do not bring, on a machine made of stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from support.chromium import PROGRAMS

SETUP: Final = Path(__file__).resolve().parent.parent / "scripts" / "setup.sh"
TOOLS: Final = ("basename", "bash", "env", "mkdir", "mktemp", "mv", "rm", "touch")
SUDO: Final = 'shift; exec "$@"'  # --non-interactive, and what is to be done
# Writes down what it is asked for; it fails until the lists are new, then it does what is put in last.
APT_GET: Final = """
for word; do case $word in update | install | download) echo "$word" >>"$LOG" ;; esac; done
[[ " $* " != *" update "* ]] || { touch "$LOG.new"; exit 0; }
[[ -e $LOG.new ]] || exit 100
%s
"""
DPKG_DEB: Final = 'mkdir -p "$3/usr/bin"; touch "$3/usr/bin/prometheus" "$3/usr/bin/promtool"'


class Machine:
    """A folder with the programs of a machine, and a checkout in which the script is used."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.programs = place / ".venv" / "bin"
        self._bin = place / "bin"
        for folder in (self._bin, self.programs):
            folder.mkdir(parents=True)
        for tool in TOOLS:
            (self._bin / tool).symlink_to(shutil.which(tool) or tool)
        self.add("sudo", SUDO)

    def add(self, name: str, script: str = "") -> None:
        """A program that does what a script says."""
        (self._bin / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
        (self._bin / name).chmod(0o755)

    def need(self, what: str) -> subprocess.CompletedProcess[str]:
        """`need_chromium` or `need_prometheus`."""
        return self.call(f"need_{what}")

    def call(self, function: str) -> subprocess.CompletedProcess[str]:
        """A function of the script."""
        command = ["bash", "-c", f'set -euo pipefail; . "{SETUP}"; {function}']
        environment = {"PATH": str(self._bin), "TMPDIR": str(self.place), "LOG": str(self.place / "log")}
        return subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True, check=False)

    @property
    def asked(self) -> list[str]:
        """What apt-get was asked for."""
        return (self.place / "log").read_text().split()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_browser_that_is_there_is_taken(machine: Machine, name: str) -> None:
    machine.add("apt-get", "exit 1")
    machine.add(name)
    done = machine.need("chromium")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("what", "names"), [("chromium", PROGRAMS), ("prometheus", ("prometheus", "promtool")), ("nginx", ("nginx",))]
)
def test_where_nothing_can_be_installed_it_says_what_must_be_there(
    machine: Machine, what: str, names: tuple[str, ...]
) -> None:
    done = machine.need(what)

    assert done.returncode == 1
    assert [name for name in names if name not in done.stderr] == []


def test_the_lists_are_fetched_when_those_that_are_there_do_not_do(machine: Machine) -> None:
    machine.add("apt-get", APT_GET % "touch bin/chromium")
    done = machine.need("chromium")

    assert done.returncode == 0, done.stderr
    assert machine.asked == ["install", "update", "install"]


def test_an_installation_that_fails_is_a_failure(machine: Machine) -> None:
    machine.add("apt-get", "exit 100")
    done = machine.need("chromium")

    assert done.returncode == 1
    assert "Chromium was not installed" in done.stderr


def test_prometheus_is_unpacked_and_never_installed(machine: Machine) -> None:
    machine.add("apt-get", APT_GET % "touch prometheus_2_all.deb")
    machine.add("dpkg-deb", DPKG_DEB)
    done = machine.need("prometheus")

    assert done.returncode == 0, done.stderr
    assert {each.name for each in machine.programs.iterdir()} == {"prometheus", "promtool"}
    assert set(machine.asked) == {"download", "update"}
    assert list(machine.place.glob("tmp.*")) == []


@pytest.mark.parametrize(("installed", "uninstalled"), [("streamd-0.1.0", ["streamd"]), ("streamd_loader-0.1.0", [])])
def test_an_environment_keeps_no_second_installation_under_the_former_name(
    machine: Machine, installed: str, uninstalled: list[str]
) -> None:
    (machine.place / f".venv/lib/python3.11/site-packages/{installed}.dist-info").mkdir(parents=True)
    (machine.place / "log").touch()
    machine.add("../.venv/bin/python", '[[ "$1 $2 $3" == "-m pip uninstall" ]] && echo "${@: -1}" >>"$LOG"')
    done = machine.call("remove_former_distribution")

    assert done.returncode == 0, done.stderr
    assert machine.asked == uninstalled
