"""The daemon under systemd: what it says, how it ends, who gets in, and what it cannot do."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.daemon_process import wait_until
from support.forked_child import in_a_forked_child
from support.systemd_box import DATA, DROP_INS, LIMIT_S, Service, run, show

import streamd
from streamd.client import Stream

pytestmark = pytest.mark.systemd

Make = Callable[..., Service]

# What a program in the daemon's sandbox tries, and what it is told.
ATTEMPTS = {
    "write the data": "OSError EROFS",
    "write the configuration": "OSError EROFS",
    "look into homes": "empty",
    "see other processes": "FileNotFoundError ENOENT",
    "listen to the network": "OSError EAFNOSUPPORT",
    "make code": "PermissionError EPERM",
    "make a namespace": "PermissionError EPERM",
    "become another": "PermissionError EPERM",
    "open a device": "FileNotFoundError ENOENT",
    "write its state": "done",
}
PROGRAM = """
    import ctypes, errno, json, mmap, os, socket
    from pathlib import Path

    CLONE_NEWUSER = 0x10000000

    def told(attempt):
        try:
            return attempt() or "done"
        except OSError as error:
            return f"{type(error).__name__} {errno.errorcode[error.errno]}"

    def unshare():
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUSER):
            raise OSError(ctypes.get_errno(), "unshare")

    STATE = Path(os.environ["STATE_DIRECTORY"])
    found = {
        "write the data": told(lambda: Path("DATA/new").touch()),
        "write the configuration": told(lambda: Path("/etc/streamd/new").touch()),
        "look into homes": told(lambda: "".join(os.listdir("/home")) or "empty"),
        "see other processes": told(lambda: Path("/proc/1/status").read_text()),
        "listen to the network": told(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
        "make code": told(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()),
        "make a namespace": told(lambda: unshare()),
        "become another": told(lambda: os.setuid(0)),
        "open a device": told(lambda: Path("/dev/mem").open("rb").close()),
        "write its state": told(lambda: (STATE / "mine").touch()),
    }
    (STATE / "found.json").write_text(json.dumps(found))

    def look(image, labels, rng):
        return image, labels
    """


def drain(stream: Stream) -> bool:
    """Whether all the epochs that are left come with receipts that are complete and right."""
    for _ in stream:
        pass
    return bool(stream.receipts) and all(receipt.ok and receipt.complete for receipt in stream.receipts)


def workers(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def inode(service: Service) -> int:
    return Path(service.socket).stat().st_ino


# --- ready, reloading, stopping


def test_it_is_ready_when_it_serves_and_not_before(make_service: Make) -> None:
    service = make_service(transform="gate:hold")
    gate = service.folder / "gate"
    os.mkfifo(gate)
    (service.folder / "gate.py").write_text(
        f"open({str(gate)!r}).close()\ndef hold(image, labels, rng):\n    return image, labels\n"
    )
    run("systemctl", "start", "--no-block", service.unit)
    service.wait_for("StatusText", "starts the workers")
    assert service.show("ActiveState") == "activating"
    with gate.open("w"):
        service.wait_for("ActiveState", "active")
    assert service.show("StatusText") == "serves train to 0 trainers"


def test_the_status_tells_how_many_trainers_it_has(service: Service) -> None:
    with streamd.connect(service.endpoint) as client, client.subscribe("train") as stream:
        next(iter(stream))
        service.wait_for("StatusText", "serves train to 1 trainer: ")


def test_a_reload_serves_what_is_written_now_and_says_when_it_cannot(service: Service) -> None:
    pid = service.pid
    service.configure(batch_size=16)
    run("systemctl", "reload", service.unit)
    wait_until(lambda: "reload.done" in service.said(), "it has reloaded", LIMIT_S)
    with streamd.connect(service.endpoint) as client:
        assert client.streams()["train"].batch_size == 16
    service.configure(batch_size=-1)
    run("systemctl", "reload", service.unit)
    service.wait_for("StatusText", "the last reload failed, see the log")
    service.wait_for("ActiveState", "active")
    assert service.pid == pid


def test_a_stop_sends_trainers_away_and_ends_well(service: Service) -> None:
    with streamd.connect(service.endpoint) as client, client.subscribe("train") as stream:
        next(iter(stream))
        run("systemctl", "stop", "streamd.socket", service.unit)
        assert service.show("Result") == "success"
        assert "disconnecting the trainers sessions=1" in service.said()
        assert not service.socket.exists()


def test_a_mistake_in_the_configuration_is_not_tried_again(make_service: Make) -> None:
    service = make_service(batch_size=-1)
    run("systemctl", "start", service.unit, fails=True)
    assert service.show("ExecMainStatus") == "2"
    assert service.show("NRestarts") == "0"
    assert "batch_size" in service.said()


# --- deaths


@pytest.mark.parametrize("whom", ["main", "all"])
def test_a_killed_daemon_comes_back_at_the_same_sockets_and_trainers_go_on(service: Service, whom: str) -> None:
    before, pid = inode(service), service.pid
    with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=3) as stream:
        next(iter(stream))
        for each in [pid] if whom == "main" else [pid, *workers(pid)]:
            with suppress(ProcessLookupError):  # a worker ends by itself when the daemon is gone
                os.kill(each, signal.SIGKILL)
        service.wait_for_another(pid)
        assert drain(stream)
    assert len(stream.receipts) == 3
    assert inode(service) == before


def test_a_restart_keeps_the_sockets_and_trainers_wait_for_it(service: Service) -> None:
    before = inode(service)
    with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=3) as stream:
        next(iter(stream))
        run("systemctl", "restart", service.unit)
        assert drain(stream)
    assert inode(service) == before


def test_a_trainer_that_comes_first_starts_the_daemon(make_service: Make) -> None:
    service = make_service()
    run("systemctl", "start", "streamd.socket")
    assert service.pid == 0
    with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        assert drain(stream)
    assert service.show("ActiveState") == "active"


def test_the_watchdog_replaces_a_daemon_whose_loop_stands_still(service: Service) -> None:
    pid = service.pid
    with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=3) as stream:
        next(iter(stream))
        os.kill(pid, signal.SIGSTOP)
        service.wait_for_another(pid)
        assert drain(stream)
    assert "Watchdog timeout" in service.said()


# --- several, and strangers


def test_two_instances_live_apart(make_service: Make) -> None:
    one, two = make_service("streamd@one"), make_service("streamd@two", batch_size=4)
    one.start()
    two.start()
    with streamd.connect(one.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        next(iter(stream))
        two.stop()
        assert drain(stream)
        assert client.streams()["train"].batch_size == 8
    assert not two.socket.exists()


def connecting_as(user: str, groups: list[int], service: Service) -> Callable[[], None]:
    """What a process of another user does: it takes an epoch, and would take the endpoint."""
    person = pwd.getpwnam(user)

    def take() -> None:
        os.setgroups(groups)
        os.setgid(person.pw_gid)
        os.setuid(person.pw_uid)
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(service.socket))
        with pytest.raises(PermissionError):  # or it could put a socket of its own there
            service.socket.unlink()
        with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=1) as stream:
            assert drain(stream)

    return take


def test_members_of_the_group_get_in_and_others_do_not(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    group = pwd.getpwnam("streamd").pw_gid
    assert in_a_forked_child(connecting_as("nobody", [group], service)) == 0
    assert in_a_forked_child(connecting_as("nobody", [], service)) == 1
    assert "PermissionError" in capfd.readouterr().err


def test_tables_and_caches_work_in_the_sandbox(make_service: Make) -> None:
    rows = {"image": [f"cat/{number:04}.jpg" for number in range(32)], "y": list(range(32))}
    parquet.write_table(pa.table(rows), DATA / "rows.parquet")
    service = make_service(
        source={"kind": "table", "path": str(DATA / "rows.parquet"), "image": "image", "root": str(DATA)},
        labels={"y": "int"},
        cache={"path": "/var/cache/streamd/train", "max": "1GiB"},
    )
    service.start()
    with streamd.connect(service.endpoint) as client, client.subscribe("train", epochs=2) as stream:
        assert drain(stream)
    assert list(Path("/var/cache/streamd/train").glob("*.cache"))


def test_programs_in_the_daemon_are_denied_all_but_its_state(make_service: Make) -> None:
    service = make_service(transform="tries:look")
    program = dedent(PROGRAM).replace("DATA", str(DATA))
    (service.folder / "tries.py").write_text(program)
    service.start()
    assert json.loads(Path("/var/lib/streamd/found.json").read_text()) == ATTEMPTS


# --- a training beside it


@pytest.mark.timeout(150)  # TensorFlow is imported twice, on a busy host
def test_a_training_is_a_unit_too_that_goes_on_after_a_kill_and_keeps_its_model(service: Service) -> None:
    name, epochs = "streamd-train@first.service", 30
    Path("/etc/streamd-train/first.env").write_text(
        f"ARGUMENTS=--stream train --epochs {epochs} --save model.keras --resume checkpoints\n"
    )
    drop_in = DROP_INS / f"{name}.d" / "soon.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nRestartSec=100ms\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "start", name)

    def told() -> str:
        return run("journalctl", "--no-pager", "--output=cat", "--unit", name)

    wait_until(lambda: f"\nEpoch 3/{epochs}\n" in told(), "two epochs are saved", 60)
    os.kill(int(show(name, "MainPID")), signal.SIGKILL)
    wait_until(lambda: show(name, "ActiveState") in {"inactive", "failed"}, "it has trained", 80)
    run("journalctl", "--sync")  # its last words may not have been read yet
    assert show(name, "Result") == "success", told()
    assert "restart counter is at 1" in told()
    began = [int(number) for number in re.findall(rf"^Epoch (\d+)/{epochs}$", told(), re.MULTILINE)]
    assert set(began) == set(range(1, epochs + 1))
    assert len(began) <= epochs + 1, "of what was saved nothing was done again"
    assert "receipt.ok" in service.said()
    assert "receipt.bad" not in service.said()
    model = Path("/var/lib/streamd-train/first/model.keras")
    assert model.owner() == "streamd-train"
