"""The files of a running daemon are removed: by a cleaner of /tmp, at the end of a login, by hand."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from killers import go_on, stop
from support.daemon_process import LIMIT_S, DaemonProcess, Start, stream_config, wait_until, write_images

import streamd
from streamd.errors import ConnectError
from streamd.ipc.endpoint import gate_folder, own_socket_path, socket_path

pytestmark = pytest.mark.long

BATCHES = 5


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data"), {"cat": 8 * BATCHES})


def move_folder_away(place: Path) -> None:
    place.parent.rename(f"{place.parent}-away")


# What is removed of the endpoint at a path. None of it stops a trainer, and who comes later finds the daemon.
REMOVED: dict[str, Callable[[Path], object]] = {
    "the socket": Path.unlink,
    "the lock": lambda place: Path(f"{place}.lock").unlink(),
    "the folder behind the door": lambda place: shutil.rmtree(gate_folder(place)),
    "the own socket": lambda place: own_socket_path(gate_folder(place)).unlink(),
    "the descriptor socket": lambda place: Path(f"{own_socket_path(gate_folder(place))}.fd").unlink(),
    "the folder with all": lambda place: shutil.rmtree(place.parent),
    "the folder, by a new name": move_folder_away,
}


def has_renewed(daemon: DaemonProcess, times: int) -> bool:
    return daemon.log.read_text().count("endpoint.gone: made anew") >= times


def test_whatever_is_removed_of_an_endpoint_is_made_anew_and_trainers_go_on(images: Path, start_daemon: Start) -> None:
    daemon = start_daemon({"streams": {"train": stream_config(images)}})
    place = socket_path(daemon.endpoint)
    for number, (what, remove) in enumerate(REMOVED.items(), 1):
        with (
            streamd.connect(daemon.endpoint, patience=LIMIT_S) as client,
            client.subscribe("train", epochs=1, prefetch=2) as stream,
        ):
            taken = iter(stream)
            assert len(next(taken)) == 8
            stop(daemon.pid)  # or it makes anew what is gone while the rest is being removed
            remove(place)
            go_on(daemon.pid)
            wait_until(partial(has_renewed, daemon, number), f"{what} is made anew")
            assert sum(1 for _ in taken) == BATCHES - 1, what
            assert [receipt.ok for receipt in stream.receipts] == [True]
        with (
            streamd.connect(daemon.endpoint, timeout=LIMIT_S) as client,
            client.subscribe("train", epochs=1) as stream,
        ):
            assert sum(1 for _ in stream) == BATCHES, what
    assert daemon.terminate() == 0
    for folder in (place.parent, Path(f"{place.parent}-away")):
        shutil.rmtree(folder)
    place.parent.mkdir()


def take_the_folders_place(daemon: DaemonProcess) -> None:
    folder = socket_path(daemon.endpoint).parent
    stop(daemon.pid)  # or it makes the folder anew between the two
    folder.rename(f"{folder}-away")
    folder.touch()
    go_on(daemon.pid)


ENDINGS: dict[str, tuple[Callable[[DaemonProcess], object], str]] = {
    "the folder cannot be made": (take_the_folders_place, "were removed while it was served, and cannot be made anew"),
    "the state": (lambda daemon: shutil.rmtree(daemon.state), "keep STATE_DIRECTORY out of folders"),
}


@pytest.mark.parametrize("what", ENDINGS)
def test_where_nothing_can_be_made_anew_the_daemon_ends_with_the_reason(
    images: Path, start_daemon: Start, what: str
) -> None:
    remove, says = ENDINGS[what]
    daemon = start_daemon({"streams": {"train": stream_config(images)}}, environment={})
    remove(daemon)
    assert daemon.process.wait(LIMIT_S) == 1
    assert says in daemon.log.read_text()
    folder = socket_path(daemon.endpoint).parent
    if folder.is_file():
        folder.unlink()
        Path(f"{folder}-away").rename(folder)


def test_a_list_of_samples_that_is_gone_is_told_and_made_anew_by_a_reload(images: Path, start_daemon: Start) -> None:
    daemon = start_daemon({"streams": {"train": stream_config(images)}}, environment={})
    (removed,) = daemon.state.glob("*.manifest")
    removed.unlink()
    said = "was removed while it was served: a reload (kill -HUP) lists the samples anew"
    wait_until(lambda: said in daemon.log.read_text(), "it is told")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(removed.exists, "it is there again")


def test_a_private_daemon_makes_its_socket_anew_and_names_its_state(images: Path) -> None:
    client = streamd.local({"workers": 1, "streams": {"train": stream_config(images)}})
    folder = socket_path(client.endpoint).parent
    (folder / "s").unlink()
    wait_until((folder / "s").is_socket, "the socket is there again")
    with client.subscribe("train", epochs=1) as stream:
        assert sum(1 for _ in stream) == BATCHES
    shutil.rmtree(folder / "state")
    with pytest.raises(ConnectError, match=r"it last said: .*manifest was removed while it was served"):
        deque(client.subscribe("train"), maxlen=0)
    client.close()


def test_a_second_daemon_that_takes_an_unlocked_endpoint_is_named(images: Path, start_daemon: Start) -> None:
    daemon = start_daemon({"streams": {"train": stream_config(images)}}, environment={})
    lock = Path(f"{socket_path(daemon.endpoint)}.lock")
    taken = Path(f"{lock}.taken")
    hold = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, 2); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, taken], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        taken.rename(lock)
        assert daemon.process.wait(LIMIT_S) == 1
        other.kill()
    assert "another streamd is already listening" in daemon.log.read_text()
