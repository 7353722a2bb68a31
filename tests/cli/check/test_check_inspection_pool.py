"""The workers of check: every group is answered once, even if a worker dies, and the file at fault is found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from support import crashing_decoders
from support.crashing_decoders import Broken, mark
from support.faulty_data import animals
from support.served_folder import serve
from support.transform_programs import Write

from streamd.cli.check import inspection_pool
from streamd.cli.check.inspection_pool import InspectionPool
from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError, StreamdError
from streamd.ipc.worker_messages import GroupResult, InspectRows
from streamd.limits import ROW_DEADLINE_S
from streamd.supervisor.worker_process import WorkerProcess

# What no worker reports, but one that a file has taken over may.
ODD_REPORTS: Final = """
if "streamd.worker" in sys.orig_argv:
    import streamd.worker.main as reporting
    encode_report = reporting.encode_report
    {change}
"""
ENDLESS: Final = "reporting.split_result = lambda _: [reporting.TaskResult(bytes(9), False)] * 3000"
NO_RESULT: Final = "reporting.split_result = lambda _: [reporting.TaskResult(bytes(9), True)]"
DAMAGED: Final = "reporting.encode_report = lambda each: encode_report(each).replace(b'is_last', b'is_list')"
# Ends a worker that is given several samples.
KILLED_BY_GROUPS: Final = """
if "streamd.worker" in sys.orig_argv:
    import streamd.worker.inspect_rows as inspecting
    inspect_rows = inspecting.inspect_rows
    inspecting.inspect_rows = lambda *what: sys.exit(3) if len(what[1].ids) > 1 else inspect_rows(*what)
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose `sitecustomize.py` the workers import: their decoders do what the files ask for."""
    for name, value in Broken(tmp_path / "ills").environment.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "ills"


def read(
    tmp_path: Path, groups: Sequence[InspectRows], *, count: int = 2, deadline_s: float = ROW_DEADLINE_S
) -> tuple[list[GroupResult], list[str]]:
    """What workers see of `groups` of a folder of eight images, and what remained unclear."""
    heard: list[GroupResult] = []
    stream = serve(tmp_path / "data", tmp_path / "state")
    reading = InspectionPool([stream.build_open_command(0)], groups, heard.append, deadline_s)
    asyncio.run(reading.inspect_all_groups(count))
    return heard, reading.notes


def ids(heard: Sequence[GroupResult]) -> list[int]:
    return sorted(sample_id for seen in heard for sample_id in seen.ids)


@pytest.mark.long
@pytest.mark.usefixtures("broken")
def test_a_file_that_crashes_the_decoder_is_found_and_costs_no_other(tmp_path: Path) -> None:
    mark(animals(tmp_path) / "cat" / "0002.jpg", crashing_decoders.ABRT)
    heard, notes = read(tmp_path, [InspectRows(0, [0, 1, 2, 3, 4]), InspectRows(0, [5, 6, 7])])
    assert ids(heard) == list(range(8))
    (fault,) = [fault for seen in heard for fault in seen.faults]
    assert (fault.sample_id, fault.effect) == (2, "crash")
    assert fault.reason == "crashes its decoder: SIGABRT"
    assert sum(len(seen.digests) for seen in heard) == 7
    assert notes == []


@pytest.mark.long
@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (crashing_decoders.HANG, "takes more than 3 s to decode"),
        (crashing_decoders.EAT, "needs more memory to decode than a worker has, 3 GiB"),
    ],
    ids=["hang", "memory"],
)
def test_a_file_that_hangs_or_takes_all_memory_is_reported_with_the_reason(
    tmp_path: Path, what: bytes, reason: str
) -> None:
    mark(animals(tmp_path) / "cat" / "0002.jpg", what)
    heard, notes = read(tmp_path, [InspectRows(0, list(range(8)))], count=1, deadline_s=3.0)
    assert ids(heard) == list(range(8))
    assert [(fault.sample_id, fault.reason, fault.effect) for seen in heard for fault in seen.faults] == [
        (2, reason, "crash")
    ]
    assert sum(len(seen.digests) for seen in heard) == 7
    assert notes == []


@pytest.mark.long
def test_a_group_that_kills_the_worker_only_as_a_whole_is_noted(tmp_path: Path, broken: Path) -> None:
    animals(tmp_path)
    with (broken / "sitecustomize.py").open("a") as file:
        file.write(KILLED_BY_GROUPS)
    heard, notes = read(tmp_path, [InspectRows(0, [0, 1, 2])])
    assert ids(heard) == [0, 1, 2]
    assert [fault for seen in heard for fault in seen.faults] == []
    (note,) = notes
    assert "with exit status 3, while it read 3 files, each of which can be read by itself" in note


@pytest.mark.long
def test_a_file_that_raises_an_error_which_no_decoder_may_raise_is_reported(tmp_path: Path, broken: Path) -> None:
    animals(tmp_path)
    with (broken / "sitecustomize.py").open("a") as file:
        file.write(KILLED_BY_GROUPS.replace("sys.exit(3) if len(what[1].ids) > 1", "1 / 0 if 2 in what[1].ids"))
    heard, notes = read(tmp_path, [InspectRows(0, [0, 1, 2])], count=1)
    (fault,) = [fault for seen in heard for fault in seen.faults]
    assert (fault.sample_id, fault.effect) == (2, "crash")
    assert fault.reason == "ends the process that reads it, with exit status 1"
    assert notes == []


@pytest.mark.long
@pytest.mark.usefixtures("broken")
def test_check_gives_up_when_too_many_files_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection_pool, "_MAX_CRASHES", 2)
    folder = animals(tmp_path)
    for path in folder.glob("cat/*.jpg"):
        mark(path, crashing_decoders.ABRT)
    with pytest.raises(StreamdError, match="more than 2 files crash the decoder, the last killed by SIGABRT"):
        read(tmp_path, [InspectRows(0, list(range(8)))], count=1)


@pytest.mark.long
@pytest.mark.parametrize("change", [ENDLESS, NO_RESULT, DAMAGED], ids=["endless", "no result", "damaged"])
def test_a_worker_that_reports_what_none_does_is_a_crash_over_its_file(
    tmp_path: Path, broken: Path, change: str
) -> None:
    animals(tmp_path)
    with (broken / "sitecustomize.py").open("a") as file:
        file.write(ODD_REPORTS.format(change=change))
    heard, _ = read(tmp_path, [InspectRows(0, [3])], count=1)
    ((fault,),) = [seen.faults for seen in heard]
    assert (fault.sample_id, fault.effect) == (3, "crash")


@pytest.mark.long
def test_data_that_are_back_after_the_streams_were_opened_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, away = animals(tmp_path), tmp_path / "away"
    stream = serve(folder, tmp_path / "state")
    send_task = WorkerProcess.send_task

    def bring_back(*task: Any) -> None:
        if away.exists():
            away.rename(folder)
        send_task(*task)

    monkeypatch.setattr(WorkerProcess, "send_task", bring_back)
    folder.rename(away)
    heard: list[GroupResult] = []
    reading = InspectionPool([stream.build_open_command(0)], [InspectRows(0, list(range(8)))], heard.append)
    asyncio.run(reading.inspect_all_groups(1))
    assert [len(seen.digests) for seen in heard] == [8]


def test_workers_that_cannot_start_raise_an_error(tmp_path: Path, broken: Path) -> None:
    animals(tmp_path)
    (broken / "sitecustomize.py").write_text("import os\nos._exit(5)")
    with pytest.raises(StreamdError, match="ended before it read anything, with exit status 5"):
        read(tmp_path, [InspectRows(0, [0, 1])])


@pytest.mark.long
def test_a_transform_that_never_returns_is_named(tmp_path: Path, program: Write) -> None:
    animals(tmp_path)
    text = "import time\ndef f(image, labels, rng):\n    time.sleep(1e6)"
    place = find_transform_source("augment:f", program("augment", text).parent)
    stream = serve(tmp_path / "data", tmp_path / "state")
    commands = [stream.build_open_command(0), replace(stream, transform=place).build_open_command(1)]
    reading = InspectionPool(commands, [InspectRows(0, [0])], print, deadline_s=2.0)
    why = "takes more than 2 s on a built-in image: is there an endless loop"
    with pytest.raises(ConfigError, match=rf"^streams\.train\.transform: transform at augment\.py:2 {why}"):
        asyncio.run(reading.inspect_all_groups(1))
    stream.manifest.close()


@pytest.mark.long
def test_cancelling_ends_the_workers_at_once(tmp_path: Path) -> None:
    animals(tmp_path)
    stream = serve(tmp_path / "data", tmp_path / "state")
    heard: list[GroupResult] = []

    async def begin_and_stop() -> None:
        def hear(seen: GroupResult) -> None:
            heard.append(seen)
            running.cancel()

        groups = [InspectRows(0, [0]), InspectRows(0, [1])]
        pool = InspectionPool([stream.build_open_command(0)], groups, hear)
        running = asyncio.create_task(pool.inspect_all_groups(1))
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(begin_and_stop())  # the conftest looks for processes that are left behind
    assert ids(heard) == [0]
