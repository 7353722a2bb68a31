"""The endpoint on disk: its lock, its sockets, and the folder behind its door."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.daemon.served_endpoint import ServedEndpoint
from streamd.errors import ConfigError
from streamd.ipc.endpoint import gate_folder, own_socket_path


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "deep" / "s"


@pytest.fixture
def served(place: Path) -> Iterator[ServedEndpoint]:
    served = ServedEndpoint(f"ipc://{place}")
    yield served
    served.close()


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_owner_and_group_may_open_the_socket_and_only_the_owner_what_lies_behind_its_door(
    place: Path, served: ServedEndpoint
) -> None:
    before = os.umask(0o022)
    try:
        served.lock()
        folder = served.create_gate_folder()
        served.open_public_socket().close()
    finally:
        os.umask(before)
    assert [read_mode(each) for each in (place, Path(f"{place}.lock"))] == [0o660, 0o600]
    assert read_mode(place.parent) & 0o007 == 0
    assert [read_mode(each) for each in (own_socket_path(folder).parent, folder)] == [0o700, 0o711]
    assert folder == gate_folder(place)
    assert served.is_gated


def test_a_private_endpoint_has_no_door(place: Path) -> None:
    served = ServedEndpoint(f"ipc://{place}", is_private=True)
    served.lock()
    assert not served.is_gated
    served.close()


@pytest.mark.parametrize(("mode", "is_gated"), [(0o600, False), (0o640, False), (0o660, True), (0o666, True)])
def test_a_handed_socket_has_a_door_if_others_may_connect_to_it(place: Path, mode: int, is_gated: bool) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(place))
        place.chmod(mode)
        held.listen()
        served = ServedEndpoint(f"ipc://{place}", {place: held.dup()})
        served.lock()
        assert served.is_gated == is_gated
        served.close()
    assert place.exists()


def test_a_taken_endpoint_is_refused(place: Path, served: ServedEndpoint) -> None:
    served.lock()
    second = ServedEndpoint(f"ipc://{place}")
    with pytest.raises(
        ConfigError, match=r"another streamd is already listening on .*: stop it, or choose another endpoint"
    ):
        second.lock()
    second.close()
    assert Path(f"{place}.lock").exists()


def test_files_of_a_dead_daemon_are_replaced_and_closing_removes_them(place: Path) -> None:
    place.parent.mkdir()
    place.touch()
    Path(f"{place}.fd").touch()
    (gate_folder(place) / "left").mkdir(parents=True)
    for _ in range(2):
        served = ServedEndpoint(f"ipc://{place}")
        served.lock()
        served.create_gate_folder()
        served.open_public_socket().close()
        assert place.is_socket()
        assert [each.name for each in gate_folder(place).iterdir()] == ["own"]
        served.close()
        assert [each.name for each in place.parent.iterdir()] == [f"{place.name}.lock"]


def test_a_path_without_room_for_gates_gets_its_folder_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        monkeypatch.setenv("RUNTIME_DIRECTORY", folder)
        place = Path(folder) / ("x" * (100 - len(folder)))
        served = ServedEndpoint(f"ipc://{place}")
        served.lock()
        elsewhere = served.create_gate_folder()
        assert elsewhere.parent == Path(folder)
        assert len(str(own_socket_path(elsewhere))) < len(str(place))
        served.close()
        assert not elsewhere.exists()


def test_a_link_in_the_gate_folders_place_is_never_emptied(place: Path, tmp_path: Path) -> None:
    place.parent.mkdir()
    (tmp_path / "precious").touch()
    gate_folder(place).symlink_to(tmp_path)
    served = ServedEndpoint(f"ipc://{place}")
    served.lock()
    served.close()
    assert (tmp_path / "precious").exists()


def assert_cannot_listen(place: Path, says: str) -> None:
    served = ServedEndpoint(f"ipc://{place}")
    with pytest.raises(ConfigError, match=says):
        served.lock()
    served.close()


def test_a_path_that_cannot_be_listened_on_is_named(place: Path) -> None:
    place.parent.write_text("a file where a folder is needed")
    assert_cannot_listen(place, f"cannot listen on {place}: .*; choose another endpoint with `listen:`")


def test_a_folder_is_refused_as_endpoint_and_kept(place: Path) -> None:
    place.mkdir(parents=True)
    assert_cannot_listen(place, "it is a folder; give the path of a file in it")
    assert list(place.parent.iterdir()) == [place]


def test_a_link_in_the_lock_files_place_is_not_followed(place: Path) -> None:
    place.parent.mkdir()
    victim = place.parent / "victim"
    Path(f"{place}.lock").symlink_to(victim)
    assert_cannot_listen(place, "cannot listen")
    assert not victim.exists()


def test_a_lock_and_folders_that_were_removed_are_made_anew(place: Path, served: ServedEndpoint) -> None:
    served.lock()
    folder = served.create_gate_folder()
    served.open_public_socket().close()
    assert served.renew_lock_and_folders() == []
    shutil.rmtree(place.parent)
    lock, own = Path(f"{place}.lock"), own_socket_path(folder).parent
    assert served.renew_lock_and_folders() == [lock, folder, own]
    assert [read_mode(each) for each in (lock, folder, own)] == [0o600, 0o711, 0o700]
    assert served.folders[1:] == [folder, own]
    second = ServedEndpoint(f"ipc://{place}")
    with pytest.raises(ConfigError, match="another streamd is already listening"):
        second.lock()


def test_a_lock_that_another_daemon_has_meanwhile_is_named(place: Path, served: ServedEndpoint) -> None:
    served.lock()
    Path(f"{place}.lock").unlink()
    second = ServedEndpoint(f"ipc://{place}")
    second.lock()
    with pytest.raises(ConfigError, match="another streamd is already listening"):
        served.renew_lock_and_folders()
    second.close()


def test_a_folder_of_somebody_else_in_the_gate_folders_place_is_not_used(
    served: ServedEndpoint, tmp_path: Path
) -> None:
    served.lock()
    folder = served.create_gate_folder()
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    with pytest.raises(FileExistsError):
        served.renew_lock_and_folders()
    folder.unlink()


def test_a_handed_socket_whose_path_is_gone_is_for_its_manager_to_mend(place: Path) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(place))
        served = ServedEndpoint(f"ipc://{place}", {place: held.dup()})
        served.lock()
        place.unlink()
        for ask in (lambda: served.is_gated, served.renew_lock_and_folders):
            with pytest.raises(ConfigError, match="the socket that the service manager made there is gone"):
                ask()
        served.close()


def test_a_door_is_gone_when_something_else_is_at_its_path(place: Path, served: ServedEndpoint) -> None:
    found = [served.is_door_gone]
    served.lock()
    with served.open_public_socket():  # while it is open, no other file gets its number
        found.append(served.is_door_gone)
        place.unlink()
        found.append(served.is_door_gone)
        place.touch()
        found.append(served.is_door_gone)
    assert found == [False, False, True, True]
