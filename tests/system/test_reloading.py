"""SIGHUP under load: unchanged streams keep running; changed ones end with the reason and restart at once."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.daemon_reload import refusal, reload, said
from support.running_trainers import Trainer, trainers

import streamd

pytestmark = pytest.mark.long

Streams = dict[str, dict[str, Any]]
BATCHES = 20  # of `train` and of `other`
SOME = 6
GATE: Final = """\
import os, sys
if "streamd.daemon.streams.listing_process" in sys.orig_argv and os.path.exists(os.environ["GATE"]):
    open(os.environ["GATE"]).read()
"""


def two_streams(place: Path) -> Streams:
    """Two streams that share nothing, not even their classes."""
    folders = {name: write_images(place / name, {"cat": 80, "dog": 80}) for name in ("train", "other")}
    return {name: stream_config(folder, labels={f"{name} label": "category"}) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    return two_streams(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def running(streams: Streams, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("d"), {"workers": 1, "streams": streams}) as daemon:
        yield daemon


@pytest.fixture
def daemon(running: DaemonProcess, streams: Streams) -> DaemonProcess:
    """A daemon for several tests: each finds it with its first configuration."""
    if json.loads(running.config.read_text())["streams"] != streams:
        write(running, streams)
        reload(running)
    return running


def write(daemon: DaemonProcess, streams: Mapping[str, object], **settings: object) -> None:
    config = json.loads(daemon.config.read_text())
    daemon.config.write_text(json.dumps(config | settings | {"streams": streams}))


def keys(epochs: int = 1, batches: int = BATCHES) -> list[tuple[int, int]]:
    return [(epoch, index) for epoch in range(epochs) for index in range(batches)]


@pytest.mark.fault("43", "reload under load")
def test_a_reload_ends_and_restarts_a_changed_stream_and_leaves_the_other_running(
    daemon: DaemonProcess, streams: Streams
) -> None:
    both = (Trainer(daemon.endpoint, "other", epochs=2, allowed=SOME), Trainer(daemon.endpoint, epochs=2, allowed=SOME))
    with trainers(*both) as (kept, changed):
        wait_until(lambda: len(kept.keys) == len(changed.keys) == SOME, "both are reading")
        write(daemon, {"other": streams["other"], "train": streams["train"] | {"batch_size": 16}})
        assert reload(daemon).endswith("kept=other changed=train added='' removed=''")
        assert [receipt.ok for receipt in kept.finish()] == [True, True]
        assert (kept.keys, kept.stream.reconnects) == (keys(2), 0)
        with pytest.raises(streamd.StreamChangedError, match=r"batch_size was 8 and is 16.*subscribe again"):
            changed.finish()
        assert changed.keys == keys()[: len(changed.keys)]
    with trainers(Trainer(daemon.endpoint, epochs=1)) as (restarted,):
        assert [receipt.ok for receipt in restarted.finish()] == [True]
        assert (restarted.stream.spec.batch_size, restarted.keys) == (16, keys(batches=BATCHES // 2))


def test_a_reload_adds_and_removes_streams_and_ends_trainers_of_a_removed_one(
    daemon: DaemonProcess, streams: Streams
) -> None:
    both = (Trainer(daemon.endpoint, "other", epochs=1, allowed=SOME), Trainer(daemon.endpoint, epochs=1, allowed=SOME))
    with trainers(*both) as (gone, kept):
        wait_until(lambda: len(gone.keys) == len(kept.keys) == SOME, "both are reading")
        validation = streams["train"] | {"shuffle": "none"}
        write(daemon, {"train": streams["train"], "validation": validation})
        assert reload(daemon).endswith("kept=train changed='' added=validation removed=other")
        assert [receipt.ok for receipt in kept.finish()] == [True]
        assert (kept.keys, kept.stream.reconnects) == (keys(), 0)
        says = r"'other' was removed.*the daemon serves: train, validation"
        with pytest.raises(streamd.StreamChangedError, match=says):
            gone.finish()
    with streamd.connect(daemon.endpoint) as client:
        assert list(client.streams()) == ["train", "validation"]
        assert [stream.name for stream in client.status().streams] == ["train", "validation"]
        with pytest.raises(streamd.RefusedError, match=r"no stream 'other'"):
            client.subscribe("other")
        with client.subscribe("validation", epochs=1) as stream:
            assert [(batch.epoch, batch.index) for batch in stream] == keys()
            assert stream.receipts[0].ok


def test_batches_sent_before_the_reload_may_still_be_taken(daemon: DaemonProcess, streams: Streams) -> None:
    with trainers(Trainer(daemon.endpoint, epochs=1, allowed=1)) as (trainer,):
        wait_until(lambda: len(trainer.keys) == 1 and trainer.undelivered, "batches lie ready")
        ready = trainer.undelivered
        write(daemon, streams | {"train": streams["train"] | {"shuffle": {"seed": 1}}})
        reload(daemon)
        with pytest.raises(streamd.StreamChangedError, match=r"shuffle\.seed was 0 and is 1"):
            trainer.finish()
        assert 1 + ready <= len(trainer.keys) < BATCHES
        assert trainer.keys == keys()[: len(trainer.keys)]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ({"train": {"batch_size": 0}, "other": {"batch": 1}}, ["streams.train.batch_size", "streams.other.batch"]),
        ({"train": {"source": {"kind": "folder", "path": "nowhere"}}}, ["streams.train.source.path", "nowhere"]),
        ({"train": {"pace": {"lockstep": "1s"}}}, ["streams.train.pace", "not served by this version"]),
        ({"train": {"transform": "nothing_beside:f"}}, ["streams.train.transform", "no module 'nothing_beside'"]),
    ],
    ids=["schema", "data", "not served", "no transform"],
)
def test_a_reload_reports_a_mistake_as_a_start_does_and_changes_nothing(
    daemon: DaemonProcess, streams: Streams, mistake: Streams, says: list[str]
) -> None:
    with trainers(Trainer(daemon.endpoint, epochs=1, allowed=SOME)) as (trainer,):
        wait_until(lambda: len(trainer.keys) == SOME, "it is reading")
        write(daemon, {name: stream | mistake.get(name, {}) for name, stream in streams.items()})
        told = refusal(daemon)
        assert all(f"config.yaml:1: {text}" in told or text in told for text in says), told
        assert [receipt.ok for receipt in trainer.finish()] == [True]
        assert (trainer.keys, trainer.stream.reconnects) == (keys(), 0)
    write(daemon, streams)
    assert reload(daemon).endswith("kept=train,other changed='' added='' removed=''")


@pytest.mark.fault("43", "ten reloads in a row under load")
def test_ten_reloads_in_a_row_do_not_disturb_trainers_of_an_unchanged_stream(
    daemon: DaemonProcess, streams: Streams
) -> None:
    other = Trainer(daemon.endpoint, "other", epochs=3, allowed=SOME)
    with trainers(other, Trainer(daemon.endpoint, "other", epochs=3)) as both:
        for number in range(10):
            other.allow(SOME + number)
            write(daemon, streams | {"train": streams["train"] | {"shuffle": {"seed": number + 1}}})
            with streamd.connect(daemon.endpoint) as client, client.subscribe("train") as changing:
                assert next(iter(changing)).index == 0
                assert "kept=other changed=train" in reload(daemon)
                assert client.spec("train").seed == number + 1
        for each in both:
            assert [receipt.ok for receipt in each.finish()] == [True] * 3
            assert (each.keys, each.stream.reconnects) == (keys(3), 0)
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        assert [(batch.epoch, batch.index) for batch in stream] == keys()
        assert stream.receipts[0].ok
    wait_until(lambda: len(manifests(daemon)) == 2, "lists that nobody reads any more are closed")


def manifests(daemon: DaemonProcess) -> list[str]:
    """The lists of samples that the daemon has open."""
    links = list[str]()
    for link in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(link.readlink()))
    return [link for link in links if link.endswith(".manifest")]


@pytest.mark.long
def test_a_token_of_an_unchanged_stream_resumes_after_a_reload_and_a_restart(
    start_daemon: Start, tmp_path: Path
) -> None:
    streams = two_streams(tmp_path)
    (tmp_path / "other" / "cat" / "0003.jpg").write_bytes(b"\xff\xd8\xff no picture" * 9)
    other = streams["other"] | {"bad_samples": {"max_fraction": 0.5}}
    daemon = start_daemon({"workers": 1, "streams": {"other": other}})
    first = read(daemon, epochs=1)
    with streamd.connect(daemon.endpoint) as client, client.subscribe("other", epochs=2) as stream:
        token = [batch.token for batch in itertools.islice(stream, BATCHES + SOME)][-1]
        write(daemon, {"other": other, "again": other, "train": streams["train"]})
        assert "kept=other changed='' added=again,train" in reload(daemon)
        assert next(iter(stream)).index == SOME
    assert daemon.terminate() == 0
    daemon.start()
    with streamd.connect(daemon.endpoint) as client:
        assert [stream.bad for stream in client.status().streams if stream.name == "other"] == [1]
        with client.subscribe("other", epochs=2, resume=token) as stream:
            assert [(batch.epoch, batch.index) for batch in stream] == keys(2)[BATCHES + SOME :]
            assert stream.receipts[0].ok
    assert read(daemon, epochs=1) == first


def read(daemon: DaemonProcess, epochs: int) -> list[list[int]]:
    """The samples that each batch of `other` delivers."""
    with streamd.connect(daemon.endpoint) as client, client.subscribe("other", epochs=epochs) as stream:
        return [batch.sample_ids.tolist() for batch in stream]


def test_a_stream_that_stopped_for_bad_samples_runs_again_when_more_are_allowed(
    start_daemon: Start, tmp_path: Path
) -> None:
    streams = two_streams(tmp_path)
    for number in range(12):
        (tmp_path / "train" / "cat" / f"{number:04}.jpg").write_bytes(b"\xff\xd8\xff no picture" * 9)
    daemon = start_daemon({"workers": 1, "streams": streams})
    stopped = pytest.raises(streamd.StreamStoppedError, match=r"set a larger max_fraction")
    with trainers(Trainer(daemon.endpoint, epochs=1)) as (trainer,), stopped:
        trainer.finish()
    write(daemon, streams | {"train": streams["train"] | {"bad_samples": {"max_fraction": 0.2}}})
    assert "kept=train,other" in reload(daemon)
    with trainers(Trainer(daemon.endpoint, epochs=1)) as (trainer,):
        (receipt,) = trainer.finish()
        assert (receipt.ok, trainer.keys) == (True, keys())


@pytest.mark.long
def test_a_missing_folder_fails_the_reload_and_no_stream(daemon: DaemonProcess, streams: Streams) -> None:
    folder = Path(streams["train"]["source"]["path"])
    with trainers(Trainer(daemon.endpoint, "other", epochs=1, allowed=SOME)) as (trainer,):
        moved = folder.rename(folder.with_name("moved"))
        write(daemon, streams | {"train": streams["train"] | {"batch_size": 4}})
        assert "cannot be opened: No such file or directory" in refusal(daemon)
        moved.rename(folder)
        assert [receipt.ok for receipt in trainer.finish()] == [True]
        assert (trainer.keys, trainer.stream.reconnects) == (keys(), 0)


@pytest.fixture
def gated(start_daemon: Start, streams: Streams, tmp_path: Path) -> tuple[DaemonProcess, Path]:
    """A daemon whose listings wait, as soon as `gate` is there, until it is opened."""
    shim, gate = tmp_path / "shim", tmp_path / "gate"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(GATE)
    return start_daemon(
        {"workers": 1, "streams": streams}, environment={"PYTHONPATH": str(shim), "GATE": str(gate)}
    ), gate


def begin_listing(daemon: DaemonProcess, gate: Path, streams: Streams, folder: Path) -> int:
    """Changes the folder of `train` and reloads; the process that lists it, which waits."""
    os.mkfifo(gate)
    before = set(daemon.workers())
    write(daemon, streams | {"train": streams["train"] | {"source": {"kind": "folder", "path": str(folder)}}})
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(set(daemon.workers()) - before) == 1, "the listing has begun")
    return (set(daemon.workers()) - before).pop()


@pytest.mark.long
@pytest.mark.fault("43", "SIGTERM during a reload")
def test_a_daemon_that_gets_sigterm_ends_its_reload(
    gated: tuple[DaemonProcess, Path], streams: Streams, tmp_path: Path
) -> None:
    daemon, gate = gated
    listing = begin_listing(daemon, gate, streams, write_images(tmp_path / "new", {"cat": 8}))
    with streamd.connect(daemon.endpoint) as client:
        assert [stream.samples for stream in client.status().streams] == [160, 160]
    assert daemon.terminate() == 0
    assert not Path(f"/proc/{listing}").exists()
    assert said(daemon, "reload.done") == said(daemon, "reload.failed") == []


@pytest.mark.long
def test_reloads_requested_during_a_reload_cause_one_more_after_it(
    gated: tuple[DaemonProcess, Path], streams: Streams, tmp_path: Path
) -> None:
    daemon, gate = gated
    begin_listing(daemon, gate, streams, write_images(tmp_path / "new", {"cat": 8}))
    daemon.process.send_signal(signal.SIGHUP)
    with streamd.connect(daemon.endpoint) as client:
        client.streams()  # the daemon has come round since
        daemon.process.send_signal(signal.SIGHUP)
        client.streams()
    assert len(said(daemon, "reload.began")) == 1
    gate.write_text("")
    wait_until(lambda: len(said(daemon, "reload.done")) == 2, "both reloads are done")
    assert "changed=train" in said(daemon, "reload.done")[0]
    assert "kept=train,other" in said(daemon, "reload.done")[1]
    assert daemon.terminate() == 0
    assert len(said(daemon, "reload.began")) == 2
