"""The keys that a gate lets in, as their folder changes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.remote_daemon import RemoteKeys

from streamd.gate.network_router import ClientKeys
from streamd.ipc.key_files import read_key_pair
from streamd.limits import (
    KEY_CONNECTIONS_A_S,
    KEY_CONNECTIONS_BURST,
    KEY_FRAMES_A_S,
    KEY_FRAMES_BURST,
    STRANGER_CONNECTIONS_BURST,
)


@pytest.fixture
def pairs(tmp_path: Path) -> RemoteKeys:
    return RemoteKeys(tmp_path)


def public_key(pairs: RemoteKeys, name: str, *, allowed: bool = True) -> str:
    return read_key_pair(Path(pairs.add_client(name, allowed=allowed)["secret"]), "k").public


def test_a_key_may_connect_as_soon_as_its_file_is_there(pairs: RemoteKeys) -> None:
    keys = ClientKeys(pairs.clients)
    keys.reload_keys()
    public = public_key(pairs, "me")
    admitted = keys.admit_client(public, "10.0.0.1", 0.0)
    assert admitted is not None
    assert admitted.name == "me"


def test_a_removed_key_is_known_no_more_after_the_next_look(pairs: RemoteKeys) -> None:
    public = public_key(pairs, "me")
    keys = ClientKeys(pairs.clients)
    keys.reload_keys()
    before = keys.generation
    pairs.remove_client("me")
    keys.reload_keys()
    assert keys.generation > before
    assert keys.find_key(public) is None
    assert keys.admit_client(public, "10.0.0.1", 0.0) is None


def test_nothing_changes_without_a_change(pairs: RemoteKeys) -> None:
    public_key(pairs, "me")
    keys = ClientKeys(pairs.clients)
    keys.reload_keys()
    before = keys.generation
    keys.reload_keys()
    assert keys.generation == before


def test_without_the_folder_nobody_is_let_in(pairs: RemoteKeys, caplog: pytest.LogCaptureFixture) -> None:
    public = public_key(pairs, "me")
    keys = ClientKeys(pairs.clients)
    keys.reload_keys()
    pairs.clients.rename(pairs.clients.parent / "away")
    keys.reload_keys()
    assert keys.admit_client(public, "10.0.0.1", 0.0) is None
    assert "nobody on another host is let in" in caplog.text


def test_a_stranger_is_logged_once(pairs: RemoteKeys, caplog: pytest.LogCaptureFixture) -> None:
    stranger = public_key(pairs, "stranger", allowed=False)
    keys = ClientKeys(pairs.clients)
    with caplog.at_level(logging.WARNING):
        for second in range(50):
            assert keys.admit_client(stranger, "10.0.0.9", float(second)) is None
    assert len([each for each in caplog.records if "10.0.0.9" in each.getMessage()]) == 1


def test_a_key_that_connects_all_the_time_has_to_wait(pairs: RemoteKeys) -> None:
    busy, other = public_key(pairs, "busy"), public_key(pairs, "other")
    keys = ClientKeys(pairs.clients)
    keys.reload_keys()
    admitted = [keys.admit_client(busy, "10.0.0.1", 0.0) is not None for _ in range(2 * int(KEY_CONNECTIONS_BURST))]
    assert sum(admitted) == KEY_CONNECTIONS_BURST
    assert keys.admit_client(other, "10.0.0.2", 0.0) is not None
    assert keys.admit_client(busy, "10.0.0.1", 2.0 / KEY_CONNECTIONS_A_S) is not None


def test_a_key_that_sends_too_many_frames_is_found(pairs: RemoteKeys) -> None:
    keys = ClientKeys(pairs.clients)
    assert all(keys.count_frame("busy", 0.0) for _ in range(int(KEY_FRAMES_BURST)))
    assert not keys.count_frame("busy", 0.0)
    assert keys.count_frame("other", 0.0)
    assert keys.count_frame("busy", 2.0 / KEY_FRAMES_A_S)


def test_strangers_cost_no_more_than_their_share(pairs: RemoteKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = public_key(pairs, "stranger", allowed=False)
    keys = ClientKeys(pairs.clients)
    looks = []
    monkeypatch.setattr(keys, "reload_keys", lambda: looks.append(1))
    for _ in range(5 * int(STRANGER_CONNECTIONS_BURST)):
        assert keys.admit_client(stranger, "10.0.0.9", 0.0) is None
    assert len(looks) == STRANGER_CONNECTIONS_BURST
