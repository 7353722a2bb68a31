"""Which endpoint a daemon and a client use, and the errors where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.errors import ConfigError, ConnectError
from streamd.ipc import endpoint


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAMD_ENDPOINT", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_the_runtime_directory_comes_before_the_users_and_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint.default_endpoint() == "ipc:///run/streamd/streamd.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert endpoint.default_endpoint() == "ipc:///run/user/7/streamd/streamd.sock"
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/a:/run/b")
    assert endpoint.default_socket_paths() == [
        Path("/run/a/streamd.sock"),
        Path("/run/user/7/streamd/streamd.sock"),
        Path("/run/streamd/streamd.sock"),
    ]


def test_the_argument_precedes_the_environment_and_that_the_default_sockets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = tmp_path / "streamd" / "streamd.sock"
    place.parent.mkdir()
    place.touch()
    assert endpoint.find_endpoint(None) == f"ipc://{place}"
    monkeypatch.setenv("STREAMD_ENDPOINT", "ipc:///run/other")
    assert endpoint.find_endpoint(None) == "ipc:///run/other"
    assert endpoint.find_endpoint("ipc:///run/said") == "ipc:///run/said"


def test_without_any_socket_the_error_names_the_paths_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(endpoint, "default_socket_paths", lambda: [tmp_path / "one", tmp_path / "two"])
    with pytest.raises(
        ConnectError, match=f"{tmp_path}/one, {tmp_path}/two: none of these sockets exists; start `streamd serve"
    ):
        endpoint.find_endpoint(None)
    monkeypatch.setattr(endpoint, "default_socket_paths", lambda: [tmp_path / "one"])
    with pytest.raises(ConnectError, match=f"{tmp_path}/one: this socket does not exist; start `streamd serve"):
        endpoint.find_endpoint(None)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("tcp://127.0.0.1", "write host and port after tcp://, as in tcp://gpu1:5555"),
        ("tcp://gpu1:0", "write host and port after tcp://"),
        ("tcp://gpu1:65536", "write host and port after tcp://"),
        ("run/streamd.sock", r"has no scheme; did you mean 'ipc:///.*/run/streamd.sock'\?$"),
        ("icp:///run/streamd.sock", "has the unknown scheme icp://: write ipc:// before"),
        ("http://127.0.0.1:9191/#token", "is the address of a dashboard; trainers connect to the daemon's socket"),
        ("ipc://streamd.sock", "write an absolute path"),
        ("ipc://", "write an absolute path"),
        ("ipc://@abstract", "write an absolute path"),
    ],
)
def test_an_invalid_endpoint_is_refused_with_the_reason(wrong: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=says):
        endpoint.check_endpoint(wrong)
    monkeypatch.setenv("STREAMD_ENDPOINT", wrong)
    with pytest.raises(ConfigError, match=says):
        endpoint.find_endpoint(None)


def test_the_path_of_a_socket_is_accepted_as_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint.find_endpoint("/run/x.sock") == endpoint.find_endpoint(Path("/run/x.sock")) == "ipc:///run/x.sock"
    monkeypatch.setenv("STREAMD_ENDPOINT", "/run/y.sock")
    assert endpoint.find_endpoint(None) == "ipc:///run/y.sock"


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match="the path of a socket cannot contain a byte of value 0"):
        endpoint.find_endpoint("/run/a\0b")


def test_a_path_may_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert endpoint.find_endpoint("~/x.sock") == endpoint.find_endpoint(Path("~/x.sock")) == "ipc:///home/me/x.sock"


def test_the_remedy_differs_for_commands_and_python(tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match=r"give the daemon's endpoint \(--endpoint, \$STREAMD_ENDPOINT\)$"):
        endpoint.find_socket(f"{tmp_path}/s")
    with pytest.raises(
        ConnectError, match=r"""give the daemon's endpoint: connect\("/path/to/streamd.sock"\), or \$STREAMD"""
    ):
        endpoint.find_socket(f"{tmp_path}/s", endpoint.PYTHON_REMEDY)


def test_a_missing_socket_is_refused_and_a_nearby_daemon_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("other.sock", "streamd.sock", "streamd.sock.d", "config.yaml"):
        (tmp_path / "run" / name).touch()
    near = rf"; start `streamd serve .*; did you mean ipc://{tmp_path}/run/streamd.sock\?$"
    monkeypatch.setattr(endpoint, "default_socket_paths", lambda: [tmp_path / "run" / "streamd.sock"])
    for wrong, fault in {
        "none/x.sock": f"there is no folder {tmp_path}/none",
        "run/x.sock": f"there is no socket x.sock in {tmp_path}/run",
        "run/config.yaml": f"{tmp_path}/run/config.yaml is a file, not a socket",
        "run": f"{tmp_path}/run is a folder, not a socket",
    }.items():
        with pytest.raises(ConnectError, match=f"no streamd daemon at ipc://{tmp_path}/{wrong}: {fault}{near}"):
            endpoint.find_socket(f"{tmp_path}/{wrong}")
    monkeypatch.setenv("STREAMD_ENDPOINT", f"ipc://{tmp_path}/run/x.sock")
    with pytest.raises(ConnectError, match=r"x.sock: \$STREAMD_ENDPOINT names it; there is no socket x.sock"):
        endpoint.find_socket(None)


def test_the_error_for_a_forbidden_folder_names_it_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConnectError, match="this user may not enter /run/streamd; add the user to the folder's group"):
        endpoint.find_socket("ipc:///run/streamd/streamd.sock")


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_a_socket_path_has_room_for_the_suffix_of_the_socket_beside_it(letter: str) -> None:
    longest = "ipc:///" + letter * (103 // len(letter.encode()))
    endpoint.check_endpoint(longest)
    assert len(endpoint.descriptor_socket_path(endpoint.socket_path(longest)).encode()) <= 107
    with pytest.raises(ConfigError, match=r"at most 104 bytes, but this one has 10\d: choose a shorter one"):
        endpoint.check_endpoint(longest + "é")


def test_the_descriptor_socket_is_beside_the_endpoint() -> None:
    assert endpoint.socket_path("ipc:///run/a/b.sock") == Path("/run/a/b.sock")
    assert endpoint.descriptor_socket_path(Path("/run/a/b.sock")) == "/run/a/b.sock.fd"
