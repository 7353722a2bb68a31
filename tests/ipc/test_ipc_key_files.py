"""Key files: written once, read by pyzmq too, and refused by name when they hold no key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq
from zmq.auth import load_certificate

from streamd.core.text import FIRST_KEY_USER, format_user
from streamd.errors import ConfigError
from streamd.ipc.key_files import (
    KeyPair,
    compute_key_user,
    format_fingerprint,
    list_key_files,
    read_client_key,
    read_client_keys,
    read_key_pair,
    read_public_key,
    write_key_files,
)
from streamd.limits import MAX_KEY_FILE_BYTES


@pytest.fixture
def pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def test_a_written_pair_is_read_again_also_by_pyzmq(tmp_path: Path, pair: KeyPair) -> None:
    public, secret = write_key_files(tmp_path / "keys", "me", pair)
    assert [public.name, secret.name] == ["me.key", "me.key_secret"]
    assert read_key_pair(secret, "curve.secret") == pair
    assert read_public_key(public, "curve server") == pair.public
    assert load_certificate(secret) == (pair.public.encode(), pair.secret.encode())
    assert load_certificate(public) == (pair.public.encode(), None)


def test_a_secret_is_for_its_owner_alone(tmp_path: Path, pair: KeyPair) -> None:
    _, secret = write_key_files(tmp_path, "me", pair)
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666])
def test_a_secret_that_others_can_read_or_write_is_refused_with_the_remedy(
    tmp_path: Path, pair: KeyPair, mode: int
) -> None:
    _, secret = write_key_files(tmp_path, "me", pair)
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=rf"whose mode is {mode:04o}: run  chmod 600 {secret}"):
        read_key_pair(secret, "curve.secret")
    secret.chmod(0o600)
    assert read_key_pair(secret, "curve.secret") == pair


@pytest.mark.parametrize(("mode", "is_accepted"), [(0o440, True), (0o400, True), (0o444, False)])
def test_a_secret_that_another_user_hands_over_may_be_its_groups(
    tmp_path: Path, pair: KeyPair, mode: int, is_accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, secret = write_key_files(tmp_path, "me", pair)
    secret.chmod(mode)
    owner = secret.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if is_accepted:
        assert read_key_pair(secret, "curve.secret") == pair
    else:
        with pytest.raises(ConfigError, match="run  chmod 440 "):
            read_key_pair(secret, "curve.secret")


@pytest.mark.parametrize("name", ["me.key", "me.key_secret"])
def test_no_file_is_replaced(tmp_path: Path, pair: KeyPair, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_key_files(tmp_path, "me", pair)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_the_rights_of_a_key_are_in_its_metadata(tmp_path: Path, pair: KeyPair) -> None:
    public, _ = write_key_files(tmp_path, "me", pair)
    assert read_client_key(public, "k").may_read("anything")
    public.write_text(public.read_text().replace("metadata\n", 'metadata\n    streams = "train validation"\n'))
    key = read_client_key(public, "k")
    assert (key.name, key.may_read("train"), key.may_read("test")) == ("me", True, False)


def test_an_empty_list_of_streams_gives_no_rights(tmp_path: Path, pair: KeyPair) -> None:
    public, _ = write_key_files(tmp_path, "me", pair)
    public.write_text(public.read_text().replace("metadata\n", 'metadata\n    streams = ""\n'))
    assert not read_client_key(public, "k").may_read("train")


@pytest.mark.parametrize("text", ["", "public-key = 'short'", 'curve\n public-key = "' + "a b" * 20 + '"'])
def test_a_file_without_a_key_admits_nobody_and_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.key").write_text(text)
    keys, faults = read_client_keys(list(list_key_files(tmp_path)), "curve.clients")
    assert keys == {}
    assert ["curve.clients: " in fault and "bad.key" in fault for fault in faults] == [True]


def test_a_public_file_is_no_secret(tmp_path: Path, pair: KeyPair) -> None:
    public, _ = write_key_files(tmp_path, "me", pair)
    with pytest.raises(ConfigError, match="has no secret key"):
        read_key_pair(public, "curve.secret")


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.key").write_bytes(b"#" * (MAX_KEY_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="is no key file"):
        read_public_key(tmp_path / "huge.key", "k")


def test_a_changed_file_is_listed_with_other_facts(tmp_path: Path, pair: KeyPair) -> None:
    public, _ = write_key_files(tmp_path, "me", pair)
    before = list_key_files(tmp_path)
    assert list(before) == [public]
    public.write_text(public.read_text() + "# changed\n")
    assert list_key_files(tmp_path) != before


def test_keys_are_users_beyond_all_uids(pair: KeyPair) -> None:
    assert format_user(compute_key_user(pair.public)) == f"the key {format_fingerprint(pair.public)}"
    assert format_user(1000) == "user 1000"
    assert FIRST_KEY_USER <= compute_key_user(pair.public) == compute_key_user(pair.public) < 2 * FIRST_KEY_USER


def test_odd_files_among_keys_admit_nobody_and_leave_the_others(tmp_path: Path, pair: KeyPair) -> None:
    write_key_files(tmp_path, "good", pair)
    os.mkfifo(tmp_path / "fifo.key")
    (tmp_path / "gone.key").symlink_to("nowhere")
    (tmp_path / "endless.key").symlink_to("/dev/zero")
    (tmp_path / "folder.key").mkdir()
    keys, faults = read_client_keys(list(list_key_files(tmp_path)), "curve.clients")
    assert list(keys) == [pair.public]
    assert len(faults) == 4
