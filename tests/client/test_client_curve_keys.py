"""Which keys a client uses for an endpoint, and what it says when they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.client.sockets import create_key_pair, find_curve_keys
from streamd.errors import ConfigError
from streamd.ipc.key_files import write_key_files

REMOTE = "tcp://gpu1:5555"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    daemon, _ = write_key_files(tmp_path, "daemon", create_key_pair())
    _, secret = write_key_files(tmp_path, "me", create_key_pair())
    return {"secret": str(secret), "server": str(daemon)}


def test_keys_come_from_the_argument(files: dict[str, str]) -> None:
    keys = find_curve_keys(REMOTE, files)
    assert keys is not None
    assert keys.server in Path(files["server"]).read_text()
    assert keys.secret in Path(files["secret"]).read_text()


def test_keys_come_from_the_environment(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMD_CURVE_SECRET", files["secret"])
    monkeypatch.setenv("STREAMD_CURVE_SERVER", files["server"])
    assert find_curve_keys(REMOTE, None) == find_curve_keys(REMOTE, files)
    assert find_curve_keys("ipc:///run/s", None) is None


def test_a_secret_does_not_show_in_a_repr(files: dict[str, str]) -> None:
    keys = find_curve_keys(REMOTE, files)
    assert keys is not None
    assert keys.secret not in repr(keys)


@pytest.mark.parametrize(("given", "missing"), [({}, "your secret key"), ("secret", "the daemon's public key")])
def test_missing_keys_are_named(files: dict[str, str], given: object, missing: str) -> None:
    curve = {"secret": files["secret"]} if given == "secret" else given
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        find_curve_keys(REMOTE, curve)


@pytest.mark.parametrize("wrong", [object(), {"secrets": "a"}, {"secret": 5}])
def test_a_wrong_argument_is_refused_with_its_form(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r'curve.*: write .*"me.key_secret"'):
        find_curve_keys(REMOTE, wrong)


def test_keys_for_a_socket_are_refused(files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="leave curve out"):
        find_curve_keys("ipc:///run/s", files)
