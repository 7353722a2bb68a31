"""What `streamd check` reports of the host on which a daemon would start."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_process import stream_config, write_images

from streamd.cli.check import run
from streamd.cli.check.run import StartObstacles, find_start_obstacles
from streamd.cli.terminal import ProgressDisplay
from streamd.config.load import load_config
from streamd.config.schema import Config
from streamd.daemon.served_endpoint import ServedEndpoint
from streamd.errors import ConfigError


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def configure(folder: Path, **settings: object) -> Config:
    return load_config({"workers": 1, "streams": {"train": stream_config(folder)}, **settings})


def refusal_of_endpoint(address: str) -> str:
    served = ServedEndpoint(address)
    with pytest.raises(ConfigError) as caught:
        served.lock()
    served.close()
    return str(caught.value)


def test_without_obstacles_nothing_is_reported_and_no_file_is_created(tmp_path: Path) -> None:
    config = configure(tmp_path, monitor="127.0.0.1:0", listen=[f"ipc://{tmp_path}/new/s"])

    assert find_start_obstacles(config) == StartObstacles([], [])
    assert find_start_obstacles(configure(tmp_path)) == StartObstacles([], [])
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_endpoint_is_trouble_in_the_words_of_serve(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for address in (f"ipc://{tmp_path}", f"ipc://{tmp_path}/file/below/s"):
        found = find_start_obstacles(configure(tmp_path, listen=[address]))

        assert (found.troubles, found.refused_here) == (
            [refusal_of_endpoint(address).replace("/file/below;", "/file;")],
            [],
        )


def test_missing_keys_are_trouble_and_a_missing_credential_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    listen = [f"ipc://{tmp_path}/s", "tcp://127.0.0.1:0"]
    curve = {"secret": str(tmp_path / "none"), "clients": str(tmp_path)}
    found = find_start_obstacles(configure(tmp_path, listen=listen, curve=curve))
    assert ["curve.secret: cannot read" in each for each in found.troubles] == [True]
    found = find_start_obstacles(configure(tmp_path, listen=listen, curve={"clients": str(tmp_path)}))
    assert (found.troubles, len(found.refused_here)) == ([], 1)
    assert "there is no credential" in found.refused_here[0]


def test_an_address_of_another_host_is_trouble_and_a_used_port_is_not(tmp_path: Path, used_port: int) -> None:
    absent = find_start_obstacles(configure(tmp_path, monitor="192.0.2.1:9191"))
    taken = find_start_obstacles(configure(tmp_path, monitor=f"127.0.0.1:{used_port}"))

    assert ["monitor: cannot listen on 192.0.2.1:9191" in each for each in absent.troubles] == [True]
    assert (absent.refused_here, taken.troubles) == ([], [])
    assert [
        f"monitor: cannot listen on 127.0.0.1:{used_port}: Address already in use" in each
        for each in taken.refused_here
    ]


def test_unusable_folders_from_the_environment_are_not_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").touch()
    (tmp_path / "state").touch()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    found = find_start_obstacles(configure(tmp_path))

    assert found.troubles == []
    expected = (f"cannot keep state in {tmp_path}/state", "64 descriptors are too few", "cannot listen on")
    assert [part in note for part, note in zip(expected, found.refused_here, strict=True)] == [True] * 3


def test_a_folder_this_user_may_not_write_is_not_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = find_start_obstacles(configure(tmp_path, listen=[f"ipc://{tmp_path}/s"]))

    assert found.troubles == []
    assert "Permission denied" in found.refused_here[-1]


def test_a_running_daemon_is_named_and_its_addresses_are_not_obstacles(tmp_path: Path, used_port: int) -> None:
    address = f"ipc://{tmp_path}/s"
    served = ServedEndpoint(address)
    served.lock()
    found = find_start_obstacles(configure(tmp_path, listen=[address], monitor=f"127.0.0.1:{used_port}"))
    served.close()

    assert found.troubles == []
    assert found.refused_here == []
    assert str(found.daemon_note).startswith(f"a daemon (pid {os.getpid()}) serves at {tmp_path}/s: kill -HUP")


@pytest.mark.long
def test_check_reports_obstacles_beside_the_data(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 2})
    path = tmp_path / "config.yaml"
    path.write_text(
        f"listen: ipc://{tmp_path}\nmonitor: 192.0.2.1:9191\nworkers: 1\n"
        f"streams: {{train: {{source: {{kind: folder, path: {folder}}}, image: {{size: [8, 8]}}, batch_size: 2}}}}\n"
    )
    found = run.inspect_data(path, ProgressDisplay())

    assert found.streams["train"].read == 2
    assert [each.partition("; ")[0] for each in found.troubles] == [
        f"cannot listen on {tmp_path}: it is a folder",
        f"{path}:2: monitor: cannot listen on 192.0.2.1:9191: Cannot assign requested address",
    ]
