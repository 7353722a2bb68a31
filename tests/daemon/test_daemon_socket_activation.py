"""Sockets from systemd are found by path, refused if they do not fit, and not inherited by children."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamd.daemon.systemd import (
    HandedSockets,
    choose_endpoint_sockets,
    has_waiting_connection,
    take_handed_sockets,
)
from streamd.errors import ConfigError

FIRST = 200  # where a test lets the descriptors begin: far from those that are open


def listening(path: Path, kind: socket.SocketKind) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, kind)
    link.bind(str(path))
    link.listen()
    return link


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def pair(place: Path) -> Iterator[HandedSockets]:
    """The sockets that a socket unit of streamd makes."""
    beside = Path(f"{place}.fd")
    with listening(place, socket.SOCK_STREAM) as stream, listening(beside, socket.SOCK_SEQPACKET) as packets:
        yield {place: stream, beside: packets}


def test_handed_sockets_are_keyed_by_path_and_not_inherited_by_children(pair: HandedSockets) -> None:
    for number, link in enumerate(pair.values(), FIRST):
        os.dup2(link.fileno(), number)
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b", "HOME": "/"}
    handed = take_handed_sockets(environment, FIRST)
    try:
        assert environment == {"HOME": "/"}
        assert {path: link.fileno() for path, link in handed.items()} == dict(
            zip(pair, (FIRST, FIRST + 1), strict=True)
        )
        assert [link.get_inheritable() or link.getblocking() for link in handed.values()] == [False, False]
    finally:
        for link in handed.values():
            link.close()


@pytest.mark.parametrize(
    "environment", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "2"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}]
)
def test_sockets_handed_to_another_process_are_not_taken(environment: dict[str, str]) -> None:
    assert take_handed_sockets(environment, FIRST) == {}


def test_a_network_socket_is_refused_by_its_kind() -> None:
    with socket.socket(socket.AF_INET) as link:
        os.dup2(link.fileno(), FIRST)
    with pytest.raises(ConfigError, match=r"no path \(AF_INET\): a socket unit of streamd has ListenStream=PATH"):
        take_handed_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, FIRST)


def test_the_two_sockets_of_the_endpoint_are_chosen(pair: HandedSockets, place: Path) -> None:
    assert choose_endpoint_sockets(pair, place, Path(f"{place}.fd")) == tuple(pair.values())
    assert choose_endpoint_sockets({}, place, Path(f"{place}.fd")) == (None, None)


def test_sockets_of_another_endpoint_are_refused_with_both_paths(pair: HandedSockets, place: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"hands over {place}, {place}\.fd, while this configuration listens on /o/s"
    ):
        choose_endpoint_sockets(pair, Path("/o/s"), Path("/o/s.fd"))


def test_the_descriptor_socket_may_be_missing_and_the_endpoints_may_not(pair: HandedSockets, place: Path) -> None:
    beside = Path(f"{place}.fd")
    assert choose_endpoint_sockets({place: pair[place]}, place, beside) == (pair[place], None)
    with pytest.raises(ConfigError, match=rf"hands over {beside}, .* ListenStream={place}"):
        choose_endpoint_sockets({beside: pair[beside]}, place, beside)


def test_a_socket_of_the_wrong_type_is_named_with_its_setting(place: Path) -> None:
    beside = Path(f"{place}.fd")
    with (
        listening(place, socket.SOCK_STREAM) as stream,
        listening(beside, socket.SOCK_STREAM) as other,
        pytest.raises(ConfigError, match=rf"{beside} is handed over as SOCK_STREAM: .* ListenSequentialPacket="),
    ):
        choose_endpoint_sockets({place: stream, beside: other}, place, beside)


def test_a_waiting_connection_is_detected(pair: HandedSockets, place: Path) -> None:
    assert not has_waiting_connection(pair.values())
    with socket.socket(socket.AF_UNIX) as trainer:
        trainer.connect(str(place))
        assert has_waiting_connection(pair.values())
    assert not has_waiting_connection([])
