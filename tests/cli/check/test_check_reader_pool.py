"""The reader processes: every group is answered once, even if a process dies, and the file at fault is found."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support import crashing_decoders
from support.crashing_decoders import Broken, mark
from support.faulty_data import CRASH, CRASHING, animals, told
from support.served_folder import serve
from support.transform_programs import Write

from streamd.cli.check import reader_pool
from streamd.cli.check.reader_messages import GroupResult, SampleGroup
from streamd.cli.check.reader_pool import READER_COMMAND, ReaderPool
from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError, StreamdError
from streamd.limits import ROW_DEADLINE_S


def read(
    tmp_path: Path,
    groups: Sequence[SampleGroup],
    *,
    command: Sequence[str] = READER_COMMAND,
    count: int = 2,
    deadline_s: float = ROW_DEADLINE_S,
) -> tuple[list[GroupResult], list[str]]:
    """What processes see of `groups` of a folder of eight images, and what remained unclear."""
    heard: list[GroupResult] = []
    stream = serve(tmp_path / "data", tmp_path / "state")
    reading = ReaderPool([told(stream)], groups, heard.append, command, deadline_s)
    asyncio.run(reading.read_all_groups(count))
    return heard, reading.notes


def ids(heard: Sequence[GroupResult]) -> list[int]:
    return sorted(sample_id for seen in heard for sample_id in seen.ids)


@pytest.mark.long
def test_a_file_that_crashes_the_decoder_is_found_and_costs_no_other(tmp_path: Path) -> None:
    folder = animals(tmp_path)
    with (folder / "cat" / "0002.jpg").open("ab") as file:
        file.write(CRASH)
    heard, notes = read(tmp_path, [SampleGroup(0, [0, 1, 2, 3, 4]), SampleGroup(0, [5, 6, 7])], command=CRASHING)
    assert ids(heard) == list(range(8))
    (fault,) = [fault for seen in heard for fault in seen.faults]
    assert (fault.sample_id, fault.effect) == (2, "crash")
    assert fault.reason == "crashes its decoder: SIGABRT"
    assert sum(len(seen.digests) for seen in heard) == 7
    assert notes == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (crashing_decoders.HANG, "takes more than 3 s to decode"),
        (crashing_decoders.EAT, "needs more memory to decode than a worker has, 3 GiB"),
    ],
    ids=["hang", "memory"],
)
def test_a_file_that_hangs_or_takes_all_memory_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: bytes, reason: str
) -> None:
    mark(animals(tmp_path) / "cat" / "0002.jpg", what)
    for name, value in Broken(tmp_path / "ills").environment.items():
        monkeypatch.setenv(name, value)
    heard, notes = read(tmp_path, [SampleGroup(0, list(range(8)))], count=1, deadline_s=3.0)
    assert ids(heard) == list(range(8))
    assert [(fault.sample_id, fault.reason, fault.effect) for seen in heard for fault in seen.faults] == [
        (2, reason, "crash")
    ]
    assert sum(len(seen.digests) for seen in heard) == 7
    assert notes == []


@pytest.mark.long
def test_a_group_that_kills_the_reader_only_as_a_whole_is_noted(tmp_path: Path) -> None:
    animals(tmp_path)
    code = (
        "import sys\nfrom streamd.cli.check import reader_process as reading\nread_group = reading.read_sample_group\n"
        "reading.read_sample_group = lambda *what: sys.exit(3) if len(what[1].ids) > 1 else read_group(*what)\n"
        "reading.main()"
    )
    heard, notes = read(tmp_path, [SampleGroup(0, [0, 1, 2])], command=(sys.executable, "-P", "-c", code))
    assert ids(heard) == [0, 1, 2]
    assert [fault for seen in heard for fault in seen.faults] == []
    (note,) = notes
    assert "with exit status 3, while it read 3 files, each of which can be read by itself" in note


@pytest.mark.long
def test_check_gives_up_when_too_many_files_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_pool, "_MAX_CRASHES", 2)
    folder = animals(tmp_path)
    for path in folder.glob("cat/*.jpg"):
        path.write_bytes(path.read_bytes() + CRASH)
    with pytest.raises(StreamdError, match="more than 2 files crash the decoder, the last killed by SIGABRT"):
        read(tmp_path, [SampleGroup(0, list(range(8)))], command=CRASHING, count=1)


def test_reader_processes_that_cannot_start_raise_an_error(tmp_path: Path) -> None:
    animals(tmp_path)
    with pytest.raises(StreamdError, match="ended before it read anything, with exit status 5"):
        read(tmp_path, [SampleGroup(0, [0, 1])], command=(sys.executable, "-c", "raise SystemExit(5)"))


@pytest.mark.long
def test_a_transform_that_never_returns_is_named(tmp_path: Path, program: Write) -> None:
    animals(tmp_path)
    text = "import time\ndef f(image, labels, rng):\n    time.sleep(1e6)"
    place = find_transform_source("augment:f", program("augment", text).parent)
    stream = serve(tmp_path / "data", tmp_path / "state")
    reading = ReaderPool(
        [told(stream), replace(told(stream), transform=place)], [SampleGroup(0, [0])], print, deadline_s=2.0
    )
    why = "takes more than 2 s on a built-in image: is there an endless loop"
    with pytest.raises(ConfigError, match=rf"^streams\.train\.transform: transform at augment\.py:2 {why}"):
        asyncio.run(reading.read_all_groups(1))
    stream.manifest.close()


@pytest.mark.long
def test_cancelling_ends_the_reader_processes_at_once(tmp_path: Path) -> None:
    animals(tmp_path)
    stream = serve(tmp_path / "data", tmp_path / "state")
    heard: list[GroupResult] = []

    async def begin_and_stop() -> None:
        def hear(seen: GroupResult) -> None:
            heard.append(seen)
            running.cancel()

        running = asyncio.create_task(
            ReaderPool([told(stream)], [SampleGroup(0, [0]), SampleGroup(0, [1])], hear).read_all_groups(1)
        )
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(begin_and_stop())  # the conftest looks for processes that are left behind
    assert ids(heard) == [0]
