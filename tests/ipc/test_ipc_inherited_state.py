"""What a process inherits from its launcher is put right before it is relied on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.daemon_process import LIMIT_S, stream_config, wait_until, write_images

import streamd
from streamd.ipc.inherited_state import correct_inherited_state

LOOK = """
import os, subprocess, sys
from streamd.ipc.inherited_state import correct_inherited_state
correct_inherited_state()
places = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
print("lost", file=sys.stderr), print("lost"), sys.stdout.flush(), sys.stdin.read()
child = subprocess.run(["readlink", "/proc/self/fd/2"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
open(sys.argv[1], "w").write("\\n".join([*places, child]))
"""
ALL = "0<&- 1>&- 2>&-"


def closing(which: str, *command: str) -> list[str]:
    """The command with these of its standard files closed, as a shell spells it."""
    return ["sh", "-c", f'exec "$@" {which}', "sh", *command]


def test_closed_standard_files_become_the_null_device(tmp_path: Path) -> None:
    found = tmp_path / "found"
    subprocess.run(closing(ALL, sys.executable, "-c", LOOK, str(found)), check=True, timeout=LIMIT_S)
    assert found.read_text().splitlines() == ["/dev/null"] * 4


def test_open_standard_files_are_unchanged(tmp_path: Path) -> None:
    found = tmp_path / "found"
    command = closing("2>&-", sys.executable, "-c", LOOK, str(found))
    done = subprocess.run(command, input=b"", stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
    assert done.stdout == b"lost\n"
    places = found.read_text().splitlines()
    assert places[0].startswith("pipe:")
    assert places[1].startswith("pipe:")
    assert places[2:] == ["/dev/null", "/dev/null"]


# How a launcher may leave what it starts, as Python's code; PLACE is a folder of the test.
INHERITED = {
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "all signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "the signals of a service ignored": "[signal.signal(getattr(signal, name), signal.SIG_IGN) for name in "
    "('SIGTERM', 'SIGINT', 'SIGHUP', 'SIGPIPE')]",
    "no umask": "os.umask(0)",
    "a umask of everything": "os.umask(0o777)",
    "a umask that takes folders from their owner": "os.umask(0o177)",
    "a small soft limit on files": "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))",
    "few descriptors, and more allowed": "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 4096))",
    "no standard descriptors": "[os.close(each) for each in (0, 1, 2)]",
    "a working directory that was removed": "os.mkdir(PLACE + '/gone'); os.chdir(PLACE + '/gone'); "
    "os.rmdir(PLACE + '/gone')",
}
LAUNCHER = "import os, resource, signal, sys; PLACE = sys.argv.pop(1); exec(sys.argv.pop(1)); "
REPORT = """
import os, resource, signal, sys
from streamd.ipc.inherited_state import correct_inherited_state
correct_inherited_state()
mask = os.umask(0o22)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
blocked, handler = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGCHLD)
status = os.waitstatus_to_exitcode(os.system("exit 3"))
print(handler == signal.SIG_DFL, len(blocked), oct(mask & 0o700), soft == hard, status)
"""


def launch(how: str, place: Path, code: str, *arguments: str) -> list[str]:
    """The command that runs Python's code as a launcher starts it that leaves this behind."""
    start = LAUNCHER + "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return [sys.executable, "-c", start, str(place), INHERITED[how], "-c", code, *arguments]


@pytest.mark.parametrize(
    "how", ["SIGCHLD ignored", "all signals blocked", "a umask of everything", "a small soft limit on files"]
)
def test_what_a_launcher_leaves_is_put_right(tmp_path: Path, how: str) -> None:
    done = subprocess.run(launch(how, tmp_path, REPORT), capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout.split() == ["True", "0", "0o0", "True", "3"]


def test_what_a_umask_takes_from_others_stays_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = [0o727]

    def set_umask(mask: int) -> int:
        masks.append(mask)
        return masks[-2]

    monkeypatch.setattr(os, "umask", set_umask)
    monkeypatch.setattr("signal.pthread_sigmask", lambda *_: None)
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    correct_inherited_state()
    assert masks[-1] == 0o027


LOCALLY = """
import streamd
exec(sys.argv[3])
stream = {"source": {"kind": "folder", "path": sys.argv[2]}, "image": {"size": [32, 32]}, "batch_size": 8}
try:
    streamd.local({"streams": {"train": stream | {"batch_size": 0}}})
except streamd.errors.ConfigError:
    said = "ConfigError, "
with open(PLACE + "/config.json", "w") as file:
    os.umask(os.umask(0) & 0o077)
    file.write(str({"workers": 1, "streams": {"train": stream}}).replace("'", '"'))
os.chmod(PLACE + "/config.json", 0o600)
with streamd.local(PLACE + "/config.json") as client, client.subscribe("train", epochs=1) as batches:
    said += f"{sum(len(batch) for batch in batches)} samples"
with open(sys.argv[4], "w") as file:
    file.write(said)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", INHERITED)
def test_a_daemon_serves_and_ends_however_it_was_started(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state" / "deep"))
    monkeypatch.delenv("PYTHONPATH", raising=False)  # Python ends where it is relative to a folder that is gone
    folder, config = write_images(tmp_path / "data", {"cat": 8}), tmp_path / "config.yaml"
    with tempfile.TemporaryDirectory(prefix="sd") as sockets:
        endpoint = f"ipc://{sockets}/deep/s"
        config.write_text(json.dumps({"workers": 1, "listen": [endpoint], "streams": {"train": stream_config(folder)}}))
        command = launch(how, tmp_path, "from streamd.cli.main import main; main()", "serve", "--config", str(config))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
            try:
                wait_until(lambda: Path(f"{sockets}/deep/s").exists() or daemon.poll() is not None, "it listens")
                with (
                    streamd.connect(endpoint, timeout=LIMIT_S) as client,
                    client.subscribe("train", epochs=1) as stream,
                ):
                    assert [len(batch) for batch in stream] == [8]
            finally:
                daemon.terminate()
                assert daemon.wait(LIMIT_S) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["SIGCHLD ignored", "all signals blocked", "a umask of everything", "no standard descriptors"]
)
def test_a_trainer_in_this_state_gets_a_private_daemon(tmp_path: Path, how: str) -> None:
    folder = write_images(tmp_path / "data", {"cat": 8})
    code = "import os, resource, signal, sys; PLACE = sys.argv[1]\n" + LOCALLY
    command = [sys.executable, "-c", code, str(tmp_path), str(folder), INHERITED[how], str(tmp_path / "said")]
    subprocess.run(command, check=True, timeout=2 * LIMIT_S, stderr=subprocess.DEVNULL)
    assert (tmp_path / "said").read_text() == "ConfigError, 8 samples"
