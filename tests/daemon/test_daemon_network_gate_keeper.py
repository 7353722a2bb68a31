"""The daemon's side of gates for other hosts: their keys, and what happens when one cannot be started."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import cast

import pytest
from support.daemon_process import LIMIT_S
from support.remote_daemon import RemoteKeys

from streamd.core.text import FIRST_KEY_USER
from streamd.daemon.gate_keeper import GateKeeper, GateListener, NetworkKeys, find_network_keys, read_key_user
from streamd.errors import ConfigError, ProtocolError
from streamd.ipc.record_link import KEY_USER
from streamd.ipc.router import FrameSender


@pytest.fixture
def keys(tmp_path: Path) -> NetworkKeys:
    config = RemoteKeys(tmp_path / "keys").config
    return find_network_keys(Path(config["secret"]), Path(config["clients"]))


def test_the_secret_is_by_default_the_credential(keys: NetworkKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = keys.secret.with_name("streamd.key_secret")
    keys.secret.rename(credential)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credential.parent))
    assert find_network_keys(None, keys.clients) == NetworkKeys(credential, keys.clients)


def test_without_a_secret_the_remedy_names_the_credential(keys: NetworkKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigError, match=r"curve.secret: is missing.*LoadCredential=streamd.key_secret:FILE"):
        find_network_keys(None, keys.clients)


def test_a_missing_folder_of_clients_is_named(keys: NetworkKeys, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"curve.clients: cannot read .*; make a folder"):
        find_network_keys(keys.secret, tmp_path / "none")


def test_a_client_is_its_key() -> None:
    user = FIRST_KEY_USER + 7
    assert read_key_user(KEY_USER.pack(user) + b"client") == user


@pytest.mark.parametrize(
    "client", [b"", b"short", KEY_USER.pack(FIRST_KEY_USER), KEY_USER.pack(0) + b"client", KEY_USER.pack(1000) + b"c"]
)
def test_a_gate_that_names_a_user_of_this_host_or_none_is_not_believed(client: bytes) -> None:
    with pytest.raises(ProtocolError, match="a client without a key"):
        read_key_user(client)


class Listener:
    """A daemon that no client has."""

    def on_gate_ended(self, prefix: bytes) -> None: ...

    def charge_user(self, user: int, took_s: float) -> float:
        del user, took_s
        return 0.0


@pytest.mark.long
async def test_an_address_in_use_is_a_mistake_in_the_configuration(
    keys: NetworkKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.daemon.gate_keeper.GATE_START_S", LIMIT_S)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        keeper = GateKeeper(cast("FrameSender", None), None)
        async with asyncio.TaskGroup() as group:
            keeper.start(cast("GateListener", Listener()), group.create_task)
            with pytest.raises(ConfigError, match=f"cannot serve {address}: Address already in use"):
                await keeper.serve_addresses([address], keys, "/nowhere")
    assert not keeper._running
