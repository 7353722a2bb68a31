"""Missing data: no sample is marked bad, other streams are served, and trainers continue when the data are back.

A folder that is emptied, or whose name leads to an empty one, looks as a disk that is not mounted does.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.checked_epochs import Epoch, verdicts
from support.daemon_process import DaemonProcess, Start, stream_config, wait_until, write_images
from support.daemon_reload import reload, said
from support.served_folder import change_times
from support.tar_shards import pack_folder

import streamd
from streamd.client import Batch

Leave = Callable[[Path, Path], None]


def unmount(folder: Path, aside: Path) -> None:
    """Leaves the folder empty, also for processes that have it open."""
    aside.mkdir()
    for each in folder.iterdir():
        each.rename(aside / each.name)


def take_away(folder: Path, aside: Path) -> None:
    unmount(folder, aside)
    folder.rmdir()


def mount_another(folder: Path, aside: Path) -> None:
    """Another disk is there, with files of the same names."""
    names = [each.relative_to(folder) for each in folder.glob("*/*")]
    unmount(folder, aside)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"of another disk")


def mount(folder: Path, aside: Path) -> None:
    """The data are at their place again, in a folder that nobody has open."""
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)


def named(way: Leave) -> str:
    return way.__name__


@contextmanager
def mounting_later(daemon: DaemonProcess, folder: Path, aside: Path) -> Iterator[threading.Event]:
    """Brings the data back as soon as they have left for good, by the event, and the daemon has said so."""
    gone = threading.Event()

    def bring_back() -> None:
        wait_until(lambda: gone.is_set() and said(daemon, "data.away"), "the data are said to be away")
        mount(folder, aside)

    bringing = threading.Thread(target=bring_back)
    bringing.start()
    try:
        yield gone
    finally:
        bringing.join()


@pytest.mark.long
def test_labels_changed_since_they_were_listed_are_logged_at_a_start_and_at_a_reload(
    start_daemon: Start, tmp_path: Path
) -> None:
    folder, weights = write_images(tmp_path / "data", {"cat": 12, "dog": 12}), tmp_path / "w.npy"
    np.save(weights, np.arange(24))
    daemon = start_daemon({"streams": {"train": stream_config(folder, weights=str(weights))}})
    change_times(weights, time.time_ns() + 10**9)
    reload(daemon)
    wait_until(lambda: len(said(daemon, "manifest.older")) == 1, "it speaks of them at a reload")
    daemon.terminate()
    daemon.start()
    wait_until(lambda: len(said(daemon, "manifest.older")) == 2, "it speaks of them at a start")


@pytest.mark.long
@pytest.mark.parametrize("leave", [unmount, take_away], ids=named)
def test_a_daemon_serves_other_streams_while_one_waits_for_its_data(
    start_daemon: Start, tmp_path: Path, leave: Leave
) -> None:
    late, there = (write_images(tmp_path / name, {"cat": 12, "dog": 12}) for name in ("late", "there"))
    streams = {"train": stream_config(late), "other": stream_config(there)}
    daemon = start_daemon({"streams": streams})
    daemon.terminate()
    leave(late, tmp_path / "aside")
    daemon.start()
    (line,) = said(daemon, "data.away")
    assert "it waits for its data: " in line
    with streamd.connect(daemon.endpoint) as client, client.subscribe("train", epochs=1) as stream:
        assert sorted(Epoch(daemon, there, "other").ids) == list(range(24))
        (trouble,) = client.status().all_troubles
        assert trouble.startswith(f"stream 'train' is stopped: it waits for its data: '{late}' ")
        assert "max_fraction" not in trouble
        mount(late, tmp_path / "aside")
        assert sorted(each for batch in stream for each in batch.sample_ids.tolist()) == list(range(24))
        assert (stream.receipts[0].ok, stream.receipts[0].bad, stream.reconnects) == (True, 0, 0)
        assert client.status().all_troubles == []
    assert len(said(daemon, "data.back")) == 1
    assert verdicts(daemon) == []


@pytest.mark.long
@pytest.mark.parametrize("leave", [take_away, mount_another], ids=named)
def test_data_that_disappear_in_mid_epoch_cause_a_pause(start_daemon: Start, tmp_path: Path, leave: Leave) -> None:
    folder = write_images(tmp_path / "data", {"cat": 160}, size=(16, 16))
    truth = Path(shutil.copytree(folder, tmp_path / "truth"))
    daemon = start_daemon({"streams": {"train": stream_config(folder, batch_size=2)}, "memory": "8MiB"})
    aside = tmp_path / "aside"

    def go(batch: Batch) -> None:
        if batch.index == 20:
            leave(folder, aside)
            if leave is take_away:  # a new worker finds no folder to open
                os.kill(daemon.workers()[0], signal.SIGKILL)
            gone.set()

    with mounting_later(daemon, folder, aside) as gone:
        epoch = Epoch(daemon, truth, between=go, prefetch=2)
    assert sorted(epoch.ids) == list(range(160))
    assert (epoch.bad, verdicts(daemon), len(said(daemon, "data.back"))) == ([], [], 1)


def stores(tmp_path: Path) -> dict[str, dict[str, object]]:
    """A stream of each kind whose samples lie in one file."""
    place = tmp_path / "stores"
    pack_folder(place / "x.tar", write_images(tmp_path / "pictures", {"cat": 16}))
    np.save(place / "x.npy", np.random.default_rng(0).integers(0, 255, (16, 8, 8, 3), dtype=np.uint8))
    with h5py.File(place / "x.h5", "w") as file:
        file["x"] = np.load(place / "x.npy")
    arrays: dict[str, object] = {"image": {}, "labels": {}}
    return {
        "tar": stream_config(place, source={"kind": "tar", "path": str(place / "x.tar")}, labels={}),
        "npy": stream_config(place, source={"kind": "npy", "path": str(place / "x.npy")}, **arrays),
        "hdf5": stream_config(place, source={"kind": "hdf5", "path": str(place / "x.h5"), "images": "/x"}, **arrays),
    }


@pytest.mark.long
def test_streams_whose_store_files_are_missing_wait_for_them_at_the_start_and_later(
    start_daemon: Start, tmp_path: Path
) -> None:
    streams, place, aside = stores(tmp_path), tmp_path / "stores", tmp_path / "aside"
    daemon = start_daemon({"streams": streams})
    daemon.terminate()
    unmount(place, aside)
    daemon.start()
    for round_ in (1, 2):
        with streamd.connect(daemon.endpoint) as client:
            trainers = {name: client.subscribe(name, epochs=1) for name in streams}
            wait_until(lambda n=round_: len(said(daemon, "data.away")) == n * len(streams), "all are away")  # type: ignore[misc]  # bound early
            mount(place, aside)
            for trainer in trainers.values():
                with trainer:
                    assert sorted(each for batch in trainer for each in batch.sample_ids.tolist()) == list(range(16))
        unmount(place, aside)
        os.kill(daemon.workers()[0], signal.SIGKILL)  # a new worker has to open the files
    assert verdicts(daemon) == []
