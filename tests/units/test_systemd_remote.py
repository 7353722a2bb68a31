"""The daemon under systemd with trainers on other hosts: its secret key is a credential of the service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from support.remote_daemon import RemoteKeys
from support.systemd_box import DROP_INS, Service, run

import streamd

pytestmark = pytest.mark.systemd

KEYS: Final = Path("/etc/streamd/keys")  # the box's own
CREDENTIAL: Final = "[Service]\nLoadCredential=streamd.key_secret:/etc/streamd/keys/daemon/daemon.key_secret\n"
_ADDRESS: Final = re.compile(r"serving other hosts at (tcp://\S+)")


@pytest.fixture(scope="module")
def keys(installed: None) -> RemoteKeys:  # noqa: ARG001 - wanted for what it does
    return RemoteKeys(KEYS)


@pytest.fixture
def make_remote_service(make_service: Callable[..., Service], keys: RemoteKeys) -> Iterator[Callable[..., Service]]:
    """Makes a service that also listens to the network, with keys by these settings, and with lines for its unit."""
    drop_in = DROP_INS / "streamd.service.d" / "remote.conf"

    def make(curve: dict[str, str], unit: str) -> Service:
        service = make_service()
        config = json.loads((service.folder / "config.yaml").read_text())
        listening = {"listen": ["tcp://127.0.0.1:0"], "curve": {"clients": str(keys.clients), **curve}}
        (service.folder / "config.yaml").write_text(json.dumps({**config, **listening}))
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(unit)
        run("systemctl", "daemon-reload")
        return service

    yield make
    drop_in.unlink(missing_ok=True)
    run("systemctl", "daemon-reload")


Make = Callable[..., Service]


def test_a_secret_key_by_credential_serves_other_hosts(make_remote_service: Make, keys: RemoteKeys) -> None:
    service = make_remote_service({}, CREDENTIAL)
    service.start()
    [address] = _ADDRESS.findall(service.said())
    assert str(KEYS / "daemon") not in (service.folder / "config.yaml").read_text()
    with (
        streamd.connect(address, curve=keys.add_client("far")) as client,
        client.subscribe("train", epochs=1) as stream,
    ):
        batches = sum(1 for _ in stream)
    assert (batches, [receipt.ok for receipt in stream.receipts]) == (8, [True])


def test_the_service_itself_cannot_read_the_file_of_the_secret_key(make_remote_service: Make) -> None:
    service = make_remote_service({"secret": str(KEYS / "daemon" / "daemon.key_secret")}, "")
    run("systemctl", "start", service.unit, fails=True)
    assert "daemon.key_secret: Permission denied" in service.said()


def test_without_a_credential_the_service_says_how_to_give_it_one(make_remote_service: Make) -> None:
    service = make_remote_service({}, "")
    run("systemctl", "start", service.unit, fails=True)
    assert "LoadCredential=streamd.key_secret:FILE" in service.said()
