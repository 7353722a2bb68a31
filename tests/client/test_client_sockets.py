"""The sockets of a client: their input, whether a daemon listens, and where a door refers it."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest
import zmq

from streamd.client.sockets import (
    UnreachableError,
    find_served_path,
    has_socket_input,
    is_socket_listening,
    open_dealer_socket,
)
from streamd.ipc.endpoint import encode_referral, gate_folder, own_socket_path

LIMIT_S = 10.0


def test_a_socket_has_input_from_arrival_until_it_is_read() -> None:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router, dealer = context.socket(zmq.ROUTER), None
        try:
            router.bind(f"ipc://{folder}/s")
            dealer = open_dealer_socket(context, f"ipc://{folder}/s")
            assert not has_socket_input(dealer)
            dealer.send(b"hello")
            who, _ = router.recv_multipart()
            router.send_multipart([who, b"there"])
            assert dealer.poll(5000)
            assert has_socket_input(dealer)
            assert dealer.recv() == b"there"
            assert not has_socket_input(dealer)
        finally:
            context.destroy(linger=0)


def test_a_socket_whose_process_has_ended_does_not_listen_though_its_file_stays() -> None:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        path = f"{folder}/s"
        assert not is_socket_listening(f"ipc://{path}")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(0)
            assert [is_socket_listening(f"ipc://{path}") for _ in range(4)] == [True] * 4, "also with a full queue"
        assert not is_socket_listening(f"ipc://{path}")


class DoorFake:
    """Listens at a path, and says the same line to each client."""

    def __init__(self, path: Path, line: bytes | None) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o660)
        self._listener.listen(4)
        self._line = line
        self._clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._answer_clients)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._listener, *self._clients):
            each.close()

    def _answer_clients(self) -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                if self._line is not None:
                    client.sendall(self._line)
                    client.shutdown(socket.SHUT_WR)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sd") as folder:
        yield Path(folder) / "s"


def test_a_private_socket_serves_its_clients_itself(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        place.chmod(0o600)
        assert find_served_path(f"ipc://{place}", 0) == place


def test_the_own_user_finds_its_socket_without_a_knock(place: Path) -> None:
    own = own_socket_path(gate_folder(place))
    own.parent.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as public, socket.socket(socket.AF_UNIX) as private:
        public.bind(str(place))
        place.chmod(0o660)
        private.bind(str(own))
        assert find_served_path(f"ipc://{place}", 0) == own


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_may_enter_is_not_the_daemons_own(place: Path, mode: int) -> None:
    own = own_socket_path(gate_folder(place))
    own.parent.mkdir(parents=True)
    own.parent.chmod(mode)
    with socket.socket(socket.AF_UNIX) as planted, DoorFake(place, encode_referral(b"/run/gate/s")):
        planted.bind(str(own))
        assert find_served_path(f"ipc://{place}", LIMIT_S) == Path("/run/gate/s")


@pytest.mark.parametrize(("line", "path"), [(encode_referral(b"/run/gate/s"), "/run/gate/s"), (b"\xff\0\0", None)])
def test_a_client_goes_where_the_door_refers_it_or_stays_where_zeromq_answers(
    place: Path, line: bytes, path: str | None
) -> None:
    with DoorFake(place, line):
        assert find_served_path(f"ipc://{place}", LIMIT_S) == (Path(path) if path else place)


def test_a_client_that_is_sent_away_gets_the_reason(place: Path) -> None:
    with DoorFake(place, b""), pytest.raises(UnreachableError) as caught:
        find_served_path(f"ipc://{place}", LIMIT_S)
    assert caught.value.refusal == "the daemon has no room for this user's connections now"


def test_without_a_daemon_there_is_no_refusal(place: Path) -> None:
    with pytest.raises(UnreachableError, match="No such file") as caught:
        find_served_path(f"ipc://{place}", LIMIT_S)
    assert caught.value.refusal is None


def test_a_wait_for_the_door_ends_with_its_time_or_with_a_wake_up(place: Path) -> None:
    wake = os.eventfd(1)
    try:
        with DoorFake(place, None):
            with pytest.raises(UnreachableError, match=r"no answer within 0\.05 s"):
                find_served_path(f"ipc://{place}", 0.05)
            began_s = time.monotonic()
            with pytest.raises(UnreachableError):
                find_served_path(f"ipc://{place}", 10 * LIMIT_S, wake)
            assert time.monotonic() - began_s < LIMIT_S
    finally:
        os.close(wake)
