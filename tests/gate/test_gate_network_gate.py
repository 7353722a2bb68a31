"""Trainers on other hosts, here over the loopback device: a whole daemon, its gate, and their keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.remote_daemon import RemoteKeys, find_address, find_network_gate

import streamd
from streamd.client import Client
from streamd.errors import ConfigError, ConnectError, RefusedError

pytestmark = pytest.mark.long

REVOKED_S = 10.0  # the promise


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> RemoteKeys:
    return RemoteKeys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, keys: RemoteKeys) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("remote")
    images = write_images(place / "images", {"cat": 40, "dog": 44})
    streams = {
        "train": stream_config(images),
        # Batches of 3 MiB, which come in many pieces.
        "large": stream_config(images, image={"size": [400, 330]}),
    }
    config = {"curve": keys.config, "streams": streams, "memory": "128MiB"}
    started = DaemonProcess(place, config, listen_remotely=True)
    with started:
        yield started


def connect(daemon: DaemonProcess, curve: dict[str, str]) -> Client:
    return streamd.connect(find_address(daemon), curve=curve)


def local_pixels(daemon: DaemonProcess, stream: str) -> list[bytes]:
    with streamd.connect(daemon.endpoint) as client, client.subscribe(stream, epochs=1) as batches:
        return [batch.images.tobytes() for batch in batches]


@pytest.mark.parametrize("stream", ["train", "large"])
def test_a_trainer_on_another_host_gets_the_same_bytes(daemon: DaemonProcess, keys: RemoteKeys, stream: str) -> None:
    curve = keys.add_client(f"same-{stream}")
    with connect(daemon, curve) as client, client.subscribe(stream, epochs=1) as batches:
        got = [batch.images.tobytes() for batch in batches]
        assert [receipt.ok for receipt in batches.receipts] == [True]
    assert got == local_pixels(daemon, stream)


def test_the_requests_of_a_client_work_from_another_host(daemon: DaemonProcess, keys: RemoteKeys) -> None:
    with connect(daemon, keys.add_client("asks")) as client:
        assert set(client.streams()) == {"train", "large"}
        assert client.batch("train", 0, 3).images.shape == (8, 32, 32, 3)
        assert client.names("train", [0]) == ["cat/0000.jpg"]
        assert [each.name for each in client.status().streams] == ["train", "large"]


def test_a_gate_that_is_killed_costs_a_remote_trainer_nothing(daemon: DaemonProcess, keys: RemoteKeys) -> None:
    with connect(daemon, keys.add_client("killed")) as client, client.subscribe("large", epochs=2) as batches:
        seen = []
        for batch in batches:
            seen.append((batch.epoch, batch.index))
            if len(seen) == 5:
                gate = find_network_gate(daemon)
                assert gate is not None
                os.kill(gate, signal.SIGKILL)
        assert seen == [(epoch, index) for epoch in range(2) for index in range(11)]
        assert [receipt.ok for receipt in batches.receipts] == [True, True]


def test_a_key_that_is_not_allowed_is_refused_with_one_line(daemon: DaemonProcess, keys: RemoteKeys) -> None:
    stranger = keys.add_client("stranger", allowed=False)
    for _ in range(2):
        with pytest.raises(ConnectError, match="does not allow this client's key"):
            connect(daemon, stranger)
    wait_until(lambda: "was refused: its key" in daemon.log.read_text(), "the daemon has logged it")
    assert daemon.log.read_text().count("was refused: its key") == 1


def test_a_removed_key_is_sent_away_within_ten_seconds(daemon: DaemonProcess, keys: RemoteKeys) -> None:
    with connect(daemon, keys.add_client("removed")) as client, client.subscribe("train") as batches:
        next(iter(batches))
        sessions = len(client.status().sessions)
        keys.remove_client("removed")
        with streamd.connect(daemon.endpoint) as local:
            wait_until(lambda: len(local.status().sessions) < sessions, "its session has ended", REVOKED_S)
        with pytest.raises(ConnectError, match="does not allow this client's key"):
            client.streams()


def test_a_key_reads_only_the_streams_of_its_file(daemon: DaemonProcess, keys: RemoteKeys) -> None:
    with connect(daemon, keys.add_client("limited", streams="train")) as client:
        assert list(client.streams()) == ["train"]
        assert [each.name for each in client.status().streams] == ["train"]
        assert not [group for group in client.stats() if group.startswith("stream.large")]
        with pytest.raises(RefusedError, match="no stream 'large'"):
            client.batch("large", 0, 0)
        with pytest.raises(RefusedError, match="may not read them all"):
            client.dashboard()


def test_an_address_of_another_host_needs_keys(daemon: DaemonProcess) -> None:
    with pytest.raises(ConfigError, match="needs keys"):
        streamd.connect(find_address(daemon))
