"""A daemon with few descriptors survives any number of clients and serves the trainers it has."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images

import streamd
from streamd.daemon.descriptor_allowance import compute_descriptor_allowance
from streamd.errors import RefusedError

LIMIT = 200
ALLOWED = compute_descriptor_allowance(LIMIT, workers=1, streams=1, is_monitored=False)

Record = Callable[[str, object], None]


class Confined(DaemonProcess):
    """A daemon that may open `LIMIT` files."""

    def _run(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            daemon = [sys.executable, "-m", "streamd.cli.main", *arguments]
            command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *daemon]
            return subprocess.Popen(command, stderr=log, stdout=log, env=self._environment)

    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Confined]:
    streams = {"train": stream_config(write_images(tmp_path / "data", {"cat": 32, "dog": 32}))}
    with Confined(tmp_path, {"streams": streams}) as daemon:
        yield daemon


def read_epoch(client: streamd.Client) -> int:
    with client.subscribe("train", epochs=1) as stream:
        return sum(1 for _ in stream)


@pytest.mark.long
@pytest.mark.fault("44", "as many trainers as there are descriptors for, and more", departs="200 of them")
def test_one_trainer_too_many_is_refused_and_the_others_keep_reading(daemon: Confined, record_property: Record) -> None:
    with ExitStack() as stack, streamd.connect(daemon.endpoint, timeout=3) as client:
        sessions = range(ALLOWED.sessions)
        streams = [stack.enter_context(client.subscribe("train", prefetch=2)) for _ in sessions]
        with pytest.raises(RefusedError) as refused:
            client.subscribe("train")
        assert f"{ALLOWED.sessions} sessions are open, which is the most that {LIMIT} descriptors allow" in str(
            refused.value
        )
        assert [next(iter(stream)).index for stream in streams] == [0] * ALLOWED.sessions
        streams[0].close()
        wait_until(lambda: read_epoch(client) == 8, "there is room for another one")
        record_property("saw", f"{len(streams)} trainers read, the next is refused; the daemon lives")
    assert daemon.process.poll() is None


@pytest.mark.long
@pytest.mark.fault(
    "44", "more connections than there are descriptors, by those who say nothing", departs="200 descriptors"
)
@pytest.mark.parametrize("speaks", [False, True])
def test_many_silent_connections_do_not_end_the_daemon(
    daemon: Confined, record_property: Record, *, speaks: bool
) -> None:
    endpoint = daemon.own_endpoint  # behind the door, which keeps no connection
    path = endpoint.removeprefix("ipc://")
    with ExitStack() as stack, streamd.connect(daemon.endpoint) as client, client.subscribe("train") as stream:
        batches = iter(stream)
        next(batches)
        context = stack.enter_context(zmq.Context())

        def lets_nobody_in() -> bool:
            for _ in range(0 if speaks else LIMIT // 4):
                link = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
                link.setblocking(False)
                if link.connect_ex(path):  # EAGAIN, while eight others wait there
                    link.close()
            return "no more connections for now" in daemon.said()

        for _ in range(LIMIT if speaks else 0):
            dealer = stack.enter_context(context.socket(zmq.DEALER))
            dealer.linger = 0
            dealer.connect(endpoint)  # libzmq tries it again and again
        wait_until(lets_nobody_in, "the daemon lets nobody in any more")
        assert [next(batches).index for _ in range(20)] == [(1 + each) % 8 for each in range(20)]
        record_property("saw", "the trainer reads on, the rest wait at the socket")
    with streamd.connect(daemon.endpoint, timeout=20) as client:
        assert read_epoch(client) == 8
