"""Samples are listed in a separate process: its errors are raised here, and it can be cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.daemon_process import stream_config, write_images
from support.locked_files import until_waited_for

from streamd.config.load import load_config
from streamd.daemon.streams.catalog import (
    build_lock_paths,
    has_all_manifests,
    make_state_folder,
    open_streams,
    write_sample_manifests,
)
from streamd.daemon.streams.listing_process import list_samples_in_process
from streamd.daemon.streams.manifest_locks import ManifestLock, hold_listing_turns
from streamd.errors import ConfigError


def config_of(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"streams": {"train": stream_config(folder)}}))
    return path


def test_samples_listed_in_the_process_can_be_opened(tmp_path: Path) -> None:
    config = config_of(tmp_path, write_images(tmp_path / "data", {"cat": 3, "dog": 4}))
    state = tmp_path / "state"
    assert not has_all_manifests(load_config(config), state)

    asyncio.run(list_samples_in_process(config, state))

    assert has_all_manifests(load_config(config), state)
    assert [stream.spec.samples for stream in open_streams(load_config(config), state)] == [7]


@pytest.mark.long
def test_an_error_in_the_data_is_raised_with_its_message(tmp_path: Path) -> None:
    config = config_of(tmp_path, tmp_path / "nothing")

    with pytest.raises(ConfigError, match=r"streams\.train.*nothing"):
        asyncio.run(list_samples_in_process(config, tmp_path / "state"))


async def test_cancelling_ends_the_process_and_leaves_no_manifest(tmp_path: Path) -> None:
    config = config_of(tmp_path, write_images(tmp_path / "data", {"cat": 3}))
    task = asyncio.create_task(list_samples_in_process(config, tmp_path / "state"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not has_all_manifests(load_config(config), tmp_path / "state")


@pytest.mark.long
async def test_a_list_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    path = config_of(tmp_path, write_images(tmp_path / "data", {"cat": 3}))
    state, config = tmp_path / "state", load_config(path)
    make_state_folder(state)
    (lock,) = build_lock_paths(config, state).values()
    with hold_listing_turns([lock]):
        waiting = asyncio.create_task(list_samples_in_process(path, state))
        await asyncio.to_thread(until_waited_for, lock.with_suffix(".turn"))
        write_sample_manifests(config, state, lambda *_: None)
    made = (*state.glob("*.manifest"),)[0].stat().st_ino
    await waiting
    assert (*state.glob("*.manifest"),)[0].stat().st_ino == made


@pytest.mark.long
def test_a_list_that_a_daemon_serves_is_not_listed_again_and_its_pid_is_named(tmp_path: Path) -> None:
    path = config_of(tmp_path, write_images(tmp_path / "data", {"cat": 3}))
    state = tmp_path / "state"
    asyncio.run(list_samples_in_process(path, state))
    serving = ManifestLock(build_lock_paths(load_config(path), state)["train"])
    assert serving.acquire_shared()
    with pytest.raises(
        ConfigError, match=rf"streams\.train: another streamd \(pid {os.getpid()}\) is serving these samples"
    ):
        asyncio.run(list_samples_in_process(path, state, list_again=True))
    serving.release_lock()
    asyncio.run(list_samples_in_process(path, state, list_again=True))
    assert serving.acquire_shared()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "listing the samples failed with status 3$"),
        (-signal.SIGSEGV, "listing the samples was ended by SIGSEGV: "),
    ],
)
async def test_a_silent_end_is_explained_by_status_or_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    class EndedProcess:
        returncode = status

        async def communicate(self, _config: bytes) -> tuple[bytes, None]:
            return b"", None

    async def start(*_arguments: object, **_settings: object) -> EndedProcess:
        return EndedProcess()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with pytest.raises(ConfigError, match=f"^{words}"):
        await list_samples_in_process({}, tmp_path)


# --- memory: long labels are listed in at most twice their memory, whatever the list is written in


ROWS: Final = 40_000
LABEL_BYTES: Final = 1024
# The peak of a process counts what it has ever had; this one forgets it before each list.
MEASURE: Final = """
import json, re, sys
from pathlib import Path
from streamd.daemon.streams.catalog import write_sample_manifests
from streamd.config.load import load_config

def peak_bytes():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

for number, config in enumerate(map(json.loads, sys.stdin)):
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    write_sample_manifests(load_config(config), Path(sys.argv[1], str(number)), lambda *_: None)
    print(peak_bytes() - before, flush=True)
"""


def rows(number: int) -> Iterator[tuple[str, str, str]]:
    """A file, a label of its own, and a side."""
    return (("cat/0000.jpg", f"{row:08}".ljust(LABEL_BYTES, "x"), "ab"[row % 4 == 0]) for row in range(number))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of ROWS samples, and small ones to warm up with."""
    folder = write_images(tmp_path_factory.mktemp("long"), {"cat": 1})
    for name, number in (("small", 10), ("large", ROWS)):
        (folder / f"{name}.csv").write_text("file,label,side\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows(number)))
        (folder / f"{name}.txt").write_text("".join(f"{a} {b}\n" for a, b, _ in rows(number)))
        columns = dict(zip(("file", "label", "side"), map(list, zip(*rows(number), strict=True)), strict=True))
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def stream(path: Path, **source: object) -> dict[str, Any]:
    kind = {"kind": "filelist"} if path.suffix == ".txt" else {"kind": "table", "image": "file"}
    return {
        "source": {**kind, "path": str(path), **source},
        "labels": {"label": "string"},
        "image": {"size": [8, 8]},
        "batch_size": 8,
    }


@pytest.mark.long
def test_long_labels_are_listed_in_at_most_twice_their_memory(written: Path, tmp_path: Path) -> None:
    kinds: list[tuple[str, dict[str, object]]] = [(kind, {}) for kind in ("csv", "parquet", "txt")] + [
        ("csv", {"where": {"side": "a"}})
    ]
    asked = [stream(written / f"{size}.{kind}", **source) for size in ("small", "large") for kind, source in kinds]
    lines = "".join(json.dumps({"streams": {"train": each}}) + "\n" for each in asked)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
    peaks = [int(line) / (ROWS * LABEL_BYTES) for line in done.stdout.splitlines()][len(kinds) :]
    assert len(peaks) == len(kinds)
    assert max(peaks) < 2, peaks
