"""Connections are cut, old frames are sent again, a second daemon starts, descriptors run out."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import pytest
import zmq
from killers import descriptors, go_on, number, stop, wait_for_credit, wait_for_outstanding
from logged import LoggedTrainer, advance, problems, running
from relay import Relay
from scene import Scene, dice, scene, shimmed, times
from strikes import counts_of, images_for
from support.daemon_process import DaemonProcess, wait_until

import streamd
from streamd.client.sockets import open_dealer_socket
from streamd.core.spec import Cursor
from streamd.ipc.messages import (
    EMPTY_HEADER,
    BatchReady,
    ClientMessage,
    FrameHeader,
    Goodbye,
    Progress,
    ReceiptSeen,
    Subscribe,
    Welcome,
    decode_daemon_frame,
    encode_frame,
    split_records,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]
Record = Callable[[str, object], None]
CUTS = times(30, 4)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("d"), images_for(CUTS)) as stage:
        yield stage


def wire_of(stage: Scene) -> Path:
    """A socket beside the daemon's, whose name is as short; none of an earlier test."""
    path = Path(stage.daemon.endpoint.removeprefix("ipc://")).with_name("relay")
    path.unlink(missing_ok=True)
    return path


@pytest.mark.fault("cut", "a trainer's connection cut under load, 30 times in an epoch, while its lifeline stays")
def test_a_trainer_reconnects_at_its_position_after_a_cut(
    stage: Scene, tmp_path: Path, record_property: Record
) -> None:
    here, met = stage.at(tmp_path), list[int]()
    other = here.trainer("other", gated=True)
    with Relay(wire_of(stage), stage.daemon.own_endpoint) as relay:
        cut = here.trainer("cut", endpoint=relay.endpoint, gated=True)
        with running(cut, other):
            for count in counts_of(CUTS, dice()):
                advance([cut, other], count)
                met.append(wait_for_outstanding(cut))
                relay.cut()
            for each in (cut, other):
                each.allow()
                each.finish()
            assert problems(stage.truth, cut, other) == []
            assert (cut.steps[-1].connection, other.steps[-1].connection) == (CUTS, 0)
            record_property("saw", f"{CUTS} cuts, {min(met)} to {max(met)} batches untaken at each")


HASTY: Final = shimmed(FAULT_LIMITS=json.dumps({"SILENCE_S": 0.2, "ANSWER_TIMEOUT_S": 0.5}))


@contextmanager
def hasty(stage: Scene, tmp_path: Path) -> Iterator[tuple[Relay, LoggedTrainer]]:
    """A trainer of little patience behind a relay, standing in mid-epoch and the daemon has sent it all that it may."""
    with (
        Relay(wire_of(stage), stage.daemon.own_endpoint) as relay,
        running(stage.at(tmp_path).trainer("t", endpoint=relay.endpoint, gated=True, environment=HASTY)) as (trainer,),
    ):
        advance([trainer], 12)
        wait_for_credit(trainer)
        yield relay, trainer


@pytest.mark.long
@pytest.mark.fault(
    "cut",
    "nothing arrives any more over a connection that stands, in mid-epoch",
    departs="the client's patience is 0.7 s instead of 15 s",
)
def test_a_trainer_replaces_a_silent_connection(stage: Scene, tmp_path: Path) -> None:
    with hasty(stage, tmp_path) as (relay, trainer):
        relay.silence()
        trainer.allow()
        trainer.finish()
        assert problems(stage.truth, trainer) == []
        assert trainer.steps[-1].connection >= 1


@pytest.mark.fault(
    "9",
    "daemon stopped with SIGSTOP until its trainer has given it up and knocks anew, and continued",
    departs="the client's patience is 0.7 s instead of 15 s",
)
def test_a_trainer_continues_after_the_daemon_was_stopped_too_long(stage: Scene, tmp_path: Path) -> None:
    with hasty(stage, tmp_path) as (relay, trainer):
        before = relay.connections
        stop(stage.daemon.pid)
        ready = trainer.lying_ready()
        trainer.allow()
        wait_until(lambda: relay.connections >= before + 2, "it knocks a second time")
        trainer.wait_for(12 + ready)
        assert len(trainer.steps) <= 20
        go_on(stage.daemon.pid)
        trainer.finish()
        assert problems(stage.truth, trainer) == []
        assert trainer.steps[-1].connection >= 1


class Hostile:
    """A client that says what it likes. A context manager."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = open_dealer_socket(self._context, endpoint)
        self.said: list[bytes] = []
        self._records: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(0)

    def say(self, header: FrameHeader, message: ClientMessage) -> None:
        self.said.append(encode_frame(header, message))
        self._socket.send(self.said[-1])

    def replay(self, frame: bytes) -> None:
        self._socket.send(frame)

    def subscribe(self) -> FrameHeader:
        """Opens a session; the header of its frames."""
        self.say(EMPTY_HEADER, Subscribe("train", 0, 1, None, Cursor(), "drop", 4, "shared", None, resuming=False))
        welcome = self.hear(Welcome)
        return FrameHeader(welcome.boot, welcome.session, 0)

    def hear(self, kind: type[Welcome | BatchReady]) -> FrameHeader:
        """Waits for such a message; its header."""
        while self._records or self._socket.poll(40_000):
            self._records = self._records or split_records(self._socket.recv_multipart()[0])
            header, message = decode_daemon_frame(self._records.pop(0))
            if isinstance(message, kind):
                return header
        raise AssertionError(f"the daemon did not send a {kind.__name__}")


@pytest.mark.long
@pytest.mark.fault("19", "all frames of an ended session replayed, and frames forged for another client's session")
def test_frames_for_other_sessions_release_nothing_and_are_counted(stage: Scene, tmp_path: Path) -> None:
    endpoint, own = stage.daemon.endpoint, stage.daemon.own_endpoint
    victim = stage.at(tmp_path).trainer("victim", gated=True, hold=4)
    with running(victim), Hostile(own) as before, Hostile(own) as now:
        advance([victim], 6)
        with streamd.connect(endpoint) as client:
            (theirs,) = client.status().sessions
        ended = before.subscribe()
        before.say(ended, Progress(4, (), 0, 0))
        for _ in range(4):
            before.hear(BatchReady)
        before.say(ended, Progress(8, (0, 1, 2, 3), 4, 0))
        before.say(ended, ReceiptSeen(0, "0" * 32, ok=False))
        before.say(ended, Goodbye())
        wait_until(lambda: number(endpoint, "sessions") == 1, "it is gone")
        now.subscribe()
        stale, receipts = number(endpoint, "stale", "wire"), number(endpoint, "receipts_bad", "stream.train")
        forged = FrameHeader(ended.boot, theirs.session, 0)
        frames = before.said[1:] + [  # but for the subscription, which would begin a session
            encode_frame(forged, message)
            for message in (Progress(1000, (0, 1, 2, 3, 4, 5), 6, 0), ReceiptSeen(0, "0" * 32, ok=False), Goodbye())
        ]
        for frame in frames:
            now.replay(frame)
        wait_until(lambda: number(endpoint, "stale", "wire") == stale + len(frames), "all are counted")
        assert number(endpoint, "sessions") == 2
        with running(stage.at(tmp_path).trainer("reader")) as (reader,):
            reader.finish()
        assert victim.held() == [step.images for step in victim.steps[-4:]]
        assert number(endpoint, "receipts_bad", "stream.train") == receipts
        victim.allow()
        victim.finish()
        assert problems(stage.truth, victim, reader) == []
        assert victim.steps[-1].connection == 0


@pytest.mark.long
@pytest.mark.fault("40", "a second daemon started on the endpoint of a first that has a trainer")
def test_a_second_daemon_on_one_endpoint_exits_and_disturbs_nobody(stage: Scene, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(stage.daemon.config)]
    with running(stage.at(tmp_path).trainer("trainer", gated=True)) as (trainer,):
        advance([trainer], 5)
        for rescan in [[], ["--rescan"]][: times(2, 1)]:
            done = subprocess.run([*command, *rescan], capture_output=True, text=True, check=False)
            assert (done.returncode, "another streamd is already listening on" in done.stderr) == (2, True)
        trainer.allow()
        trainer.finish()
        assert problems(stage.truth, trainer) == []
        assert trainer.steps[-1].connection == 0


@pytest.mark.long
@pytest.mark.fault("40", "a second daemon started on the state directory of a first, at an endpoint of its own")
def test_two_daemons_on_one_state_directory_serve_the_same_batches(stage: Scene, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    config = {"workers": 1, "streams": stage.streams}
    second = DaemonProcess(tmp_path / "second", config, environment={"STATE_DIRECTORY": str(stage.daemon.state)})
    try:
        second.start()
        other = Scene(second, stage.truth, tmp_path, stage.streams).trainer("at-the-second")
        with running(stage.at(tmp_path).trainer("at-the-first"), other) as trainers:
            for each in trainers:
                each.finish()
            assert problems(stage.truth, *trainers) == []
        assert second.terminate() == 0
    finally:
        second.kill()
    with running(stage.at(tmp_path).trainer("afterwards")) as (trainer,):
        trainer.finish()
        assert problems(stage.truth, trainer) == []


@pytest.mark.long
@pytest.mark.fault(
    "44",
    "the daemon's descriptors used up while one trainer reads on, one waits far behind, and a third knocks",
    departs="RLIMIT_NOFILE alone; neither TasksMax nor a full /dev/shm, which holds nothing of ours",
)
def test_without_descriptors_connected_trainers_read_on_and_new_ones_wait(stage: Scene, tmp_path: Path) -> None:
    here, pid = stage.at(tmp_path), stage.daemon.pid
    behind, ahead, late = (here.trainer(name, gated=name != "late") for name in ("behind", "ahead", "late"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with running(behind, ahead):
        advance([behind, ahead], 4)
        for each in (behind, ahead):
            wait_for_credit(each)
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid), before[1]))
            with running(late):
                for each in (ahead, behind):  # what lies between them is kept, so new slots are wanted
                    each.allow()
                    each.finish()
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                late.finish()
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert problems(stage.truth, behind, ahead, late) == []
        assert [each.steps[-1].connection for each in (behind, ahead)] == [0, 0]
