"""Held batches count in the memory limit after a seek, a close or a lost connection; shared memory is measured."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from support.daemon_reload import reload
from support.slot_memory import family, slot_memory_bytes

import streamd
from streamd.client.leases import HELD_OVER_CONNECTIONS
from streamd.client.session import ClientAction
from streamd.errors import BatchesHeldError, RefusedError, StreamChangedError

pytestmark = pytest.mark.long

MEMORY_BYTES = 2 << 20
IMAGE = {"size": [128, 128]}
BATCH_BYTES = 8 * 128 * 128 * 3  # five of them fit into the memory, with their labels and ids


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 60, "dog": 60})
    stream = stream_config(folder, image=IMAGE)
    with DaemonProcess(place, {"memory": MEMORY_BYTES, "workers": 2, "streams": {"train": stream}}) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held batches raise an error soon; a thread that reports those dropped may have to wait for a processor."""
    monkeypatch.setattr("streamd.client.waiting.HELD_COLLECT_S", 0.25)
    monkeypatch.setattr("streamd.client.waiting.HELD_ERROR_S", 0.25)


def in_slots(daemon: DaemonProcess) -> int:
    return slot_memory_bytes([os.getpid(), *family(daemon.pid)])


def take(stream: streamd.Stream) -> streamd.Batch:
    """The next batch, looked at, so that its pages are there."""
    batch = next(iter(stream))
    batch.images.max()
    return batch


def hold_all(stream: streamd.Stream, held: list[streamd.Batch]) -> None:
    """Takes and holds batches until it may hold no more."""
    with contextlib.suppress(BatchesHeldError):
        while True:
            held.append(take(stream))


def lose_connection(stream: streamd.Stream) -> None:
    """As after a frame that did not come: the client gives the connection up, and begins another one."""

    def lose() -> tuple[ClientAction, ...]:
        stream._io_thread._drop_connection()
        return ()

    stream._io_thread.queue_session_call(lose)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def seek_and_hold(stream: streamd.Stream, held: list[streamd.Batch], seen: list[int], daemon: DaemonProcess) -> None:
    """Goes back forty times, and holds what comes; `seen` is the memory in slots each time."""
    place = stream.token
    for _ in range(40):
        stream.seek(place)
        held.append(take(stream))
        seen.append(in_slots(daemon))


def test_seeks_that_hold_a_batch_each_stay_within_the_memory_and_raise(tight: DaemonProcess) -> None:
    with streamd.connect(tight.endpoint) as client, client.subscribe("train") as stream:
        held, seen = [take(stream)], [0]
        with pytest.raises(BatchesHeldError, match="of them from before a seek") as raised:
            seek_and_hold(stream, held, seen, tight)
        assert len(raised.value.held) == len(held)
        assert 2 * BATCH_BYTES < max(seen) <= MEMORY_BYTES
        wait_until(lambda: client.status().held_over_bytes, "they are held over")

        held.clear()
        assert take(stream).index == 1
        wait_until(lambda: client.status().held_over_bytes == 0, "nothing is held over")
        assert in_slots(tight) <= MEMORY_BYTES


def test_seeks_that_hold_no_batch_leak_neither_memory_nor_descriptors(tight: DaemonProcess) -> None:
    with streamd.connect(tight.endpoint) as client, client.subscribe("train") as stream:
        take(stream)
        place, before = stream.token, descriptors()
        for _ in range(20):
            stream.seek(place)
            take(stream)
        assert descriptors() < before + 10, "more than the other thread may have open for a moment"
        assert in_slots(tight) <= MEMORY_BYTES
        wait_until(lambda: client.status().held_over_bytes == 0, "nothing is held over")


def test_a_loop_that_seeks_while_it_holds_its_batch_runs_in_memory_that_just_fits(tight: DaemonProcess) -> None:
    with streamd.connect(tight.endpoint) as client, client.subscribe("train", prefetch=2) as stream:
        place, seen = "", []
        for batch in stream:
            seen.append(batch.sample_ids.tolist())
            if len(seen) == 1:
                place = batch.token
            elif len(seen) in {4, 7}:
                stream.seek(place)
            elif len(seen) == 10:
                break
        assert seen[1:4] == seen[4:7] == seen[7:10]
        del batch


def test_held_batches_of_a_closed_stream_count_in_the_next_one(tight: DaemonProcess) -> None:
    with streamd.connect(tight.endpoint) as client:
        with client.subscribe("train", prefetch=2) as stream:
            held = [take(stream), take(stream)]
        copies = [batch.images.copy() for batch in held]
        with client.subscribe("train") as stream:
            hold_all(stream, held)
            assert in_slots(tight) <= MEMORY_BYTES
            assert all((batch.images == copy).all() for batch, copy in zip(held, copies, strict=False))
            held.clear()
            assert take(stream).sample_ids.size == 8


def test_another_trainer_is_refused_with_the_memory_that_ended_subscriptions_hold(tight: DaemonProcess) -> None:
    held: list[streamd.Batch] = []
    with streamd.connect(tight.endpoint, timeout=3) as client:
        with client.subscribe("train") as stream:
            hold_all(stream, held)
        mine = set(HELD_OVER_CONNECTIONS)
        HELD_OVER_CONNECTIONS.clear()  # as another process, which knows nothing of them
        with pytest.raises(RefusedError, match=r"that trainers still hold of subscriptions that have ended.*tried for"):
            client.subscribe("train")
        HELD_OVER_CONNECTIONS.update(mine)
        held.clear()
        client.subscribe("train").close()
        assert not HELD_OVER_CONNECTIONS


def test_held_batches_of_a_lost_connection_count_until_they_are_dropped(tight: DaemonProcess) -> None:
    with streamd.connect(tight.endpoint) as client, client.subscribe("train", prefetch=2) as stream:
        held = take(stream)
        lose_connection(stream)
        wait_until(lambda: client.status().held_over_bytes, "the daemon knows what is held of the lost connection")
        assert take(stream).index == held.index + 1
        assert in_slots(tight) <= MEMORY_BYTES
        del held
        wait_until(lambda: not client.status().held_over_bytes, "nothing is held over")
        both = [take(stream), take(stream)]
        assert [batch.index for batch in both] == [2, 3]
        del both


def test_held_batches_count_also_when_memory_can_no_longer_be_shared(
    tight: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> memoryview:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with streamd.connect(tight.endpoint) as client, client.subscribe("train", prefetch=2) as stream:
        held = take(stream)
        monkeypatch.setattr("streamd.client.io_thread.map_readable", refuse)
        for _ in range(4):
            take(stream)  # those that were mapped by then, and then one that comes by the socket
        wait_until(lambda: client.status().held_over_bytes, "it is held over")
        del held
        wait_until(lambda: not client.status().held_over_bytes, "nothing is held over")


def test_held_batches_of_a_changed_stream_count_until_they_are_dropped(tight: DaemonProcess) -> None:
    with streamd.connect(tight.endpoint) as client, client.subscribe("train", prefetch=2) as stream:
        held = [take(stream)]
        config = json.loads(tight.config.read_text())
        config["streams"]["train"]["batch_size"] = 4
        tight.config.write_text(json.dumps(config))
        reload(tight)
        with pytest.raises(StreamChangedError):
            hold_all(stream, held)
        wait_until(lambda: client.status().held_over_bytes, "it counts")
        held.clear()
        wait_until(lambda: not client.status().held_over_bytes, "nothing is held over")
