"""The same files, configuration and seed give the same bytes, with any workers, after any restart, in any folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from golden_streams import (
    ALL_BAD,
    BATCH,
    EPOCHS,
    SAMPLES,
    digest_batches,
    digest_daemon,
    digest_stream,
    read_golden_digests,
    streams,
    write_data,
)
from support.daemon_process import DaemonProcess, Start
from support.short_stream import FULL

import streamd
from streamd.client import Batch
from streamd.ipc.messages import Transport

pytestmark = pytest.mark.long

NAMES: Final = tuple(streams(Path()))
DEATHS: Final = {1, 9, 12, 17, 23} if FULL else {3, 17}  # batches taken when the daemon is killed

# A module that every Python process imports when it starts: folders are listed backwards, and their paths recorded.
BACKWARDS: Final = """
import os
from contextlib import contextmanager

_scandir = os.scandir

@contextmanager
def _backwards(path="."):
    with _scandir(path) as listing:
        entries = sorted(listing, key=lambda entry: os.fsencode(entry.name), reverse=True)
    with open(os.environ["LISTED_BACKWARDS"], "a") as told:
        told.write(os.fsdecode(path) + "\\n")
    yield iter(entries)

os.scandir = _backwards
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("d"), {"workers": 4, "streams": streams(data)}) as daemon:
        yield daemon.endpoint


def test_the_golden_streams_contain_bad_samples_and_one_batch_of_bad_samples_only(endpoint: str) -> None:
    with streamd.connect(endpoint) as client:
        for name in NAMES:
            with client.subscribe(name, epochs=1) as stream:
                actions = {bad.action for batch in stream for bad in batch.bad}
            assert ("substituted" in actions) == name.endswith("substitute")
        nothing = client.batch("none-pad-substitute", 0, ALL_BAD[0] // BATCH)
        assert nothing.weights.sum() == nothing.images.sum() == 0
        assert len(nothing.bad) == BATCH


@pytest.mark.fault("30", "1, 2, 4 and 8 workers against digests that one worker made once")
@pytest.mark.parametrize("workers", [1, 2, 4, 8] if FULL else [1])  # the other tests' daemons have two and four
def test_any_number_of_workers_makes_the_golden_bytes(start_daemon: Start, data: Path, workers: int) -> None:
    daemon = start_daemon({"workers": workers, "streams": streams(data)})
    assert len(daemon.workers()) == workers
    assert digest_daemon(daemon.endpoint) == read_golden_digests()


@pytest.mark.fault("30", "the daemon killed with -9 in the midst of epochs")
@pytest.mark.timeout(240)  # each start of a daemon takes seconds where much else is running
@pytest.mark.parametrize("name", NAMES if FULL else NAMES[:1])
def test_a_daemon_killed_in_mid_epoch_continues_with_the_golden_bytes(
    start_daemon: Start, data: Path, name: str
) -> None:
    daemon = start_daemon({"workers": 2, "streams": streams(data)})
    taken = 0

    def kills(batches: Iterable[Batch]) -> Iterator[Batch]:
        nonlocal taken
        for batch in batches:
            taken += 1
            yield batch
            if taken in DEATHS:
                daemon.restart_after_kill()

    with streamd.connect(daemon.endpoint) as client, client.subscribe(name, epochs=EPOCHS, prefetch=4) as stream:
        assert digest_batches(stream, kills) == read_golden_digests()[name]
    assert stream.reconnects == len(DEATHS)


@pytest.mark.long
@pytest.mark.fault("30", "the data made elsewhere in another order, folders listed backwards, another hash seed")
@pytest.mark.parametrize("seed", ["0", "1", "4294967295"] if FULL else ["1"])
def test_the_golden_bytes_depend_on_no_directory_listing_order_or_hash_seed(
    start_daemon: Start, tmp_path: Path, seed: str
) -> None:
    elsewhere = write_data(tmp_path / "somewhere" / "else", reversed(range(SAMPLES)))
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(BACKWARDS)
    told = tmp_path / "listed"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "shim"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONHASHSEED": seed,
        "LISTED_BACKWARDS": str(told),
    }
    daemon = start_daemon({"workers": 2, "streams": streams(elsewhere)}, environment=environment)
    assert str(elsewhere / "images" / "class-3") in told.read_text().splitlines()
    assert digest_daemon(daemon.endpoint) == read_golden_digests()


@pytest.mark.fault("30", "three trainers at once, and one alone")
@pytest.mark.parametrize("name", NAMES if FULL else NAMES[:1])
def test_several_trainers_at_once_get_the_golden_bytes_each(endpoint: str, name: str) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(partial(digest_stream, name), [endpoint] * 3)] == [read_golden_digests()[name]] * 3


@pytest.mark.fault("30", "a third of a batch at a time, in shared memory and through the socket")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transport", ["shared", "inline"])
def test_parts_of_batches_are_the_golden_bytes_when_put_together(
    endpoint: str, name: str, transport: Transport
) -> None:
    with (
        streamd.connect(endpoint) as client,
        client.subscribe(name, batch_size=BATCH // 3, epochs=EPOCHS, transport=transport) as stream,
    ):
        assert digest_batches(stream, put_together) == read_golden_digests()[name]


def put_together(parts: Iterable[Batch]) -> Iterator[Batch]:
    for index, several in groupby(parts, lambda part: part.index // 3):
        each = list(several)
        first = each[0]
        yield replace(
            first,
            index=index,
            arrays={name: np.concatenate([part.arrays[name] for part in each]) for name in first.arrays},
            labels={name: np.concatenate([part.labels[name] for part in each]) for name in first.labels},
            weights=np.concatenate([part.weights for part in each]),
            sample_ids=np.concatenate([part.sample_ids for part in each]),
        )
