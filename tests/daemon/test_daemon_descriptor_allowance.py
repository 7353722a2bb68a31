"""How many trainers and batches fit into a number of descriptors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.daemon.descriptor_allowance import DescriptorAllowance, compute_descriptor_allowance
from streamd.daemon.engine.engine import OpenStreams
from streamd.daemon.streams.manifest_locks import ManifestLocks
from streamd.errors import ConfigError
from streamd.limits import (
    KNOCKS,
    MAX_MONITOR_CONNECTIONS,
    MAX_SESSIONS,
    MAX_SLOTS,
    MIN_CREDIT,
    RELOADED_STREAMS,
    SPARE_DESCRIPTORS,
    STREAM_DESCRIPTORS,
)


def given(limit: int, *, workers: int = 1, streams: int = 1, is_monitored: bool = False) -> DescriptorAllowance:
    return compute_descriptor_allowance(limit, workers=workers, streams=streams, is_monitored=is_monitored)


@pytest.mark.parametrize("limit", [200, 256, 1024, 4096, 1 << 20])
def test_the_allowed_descriptors_fit_into_the_limit(limit: int) -> None:
    allowed = given(limit)
    processes = allowed.sessions
    assert (
        allowed.own_descriptors
        + allowed.max_connection_descriptors
        + allowed.max_lifeline_connections
        + processes
        + allowed.slots
        <= limit
    )
    assert allowed.max_connection_descriptors >= 2 * allowed.sessions + SPARE_DESCRIPTORS


@pytest.mark.parametrize("limit", [200, 256, 1024])
def test_half_of_the_slots_suffice_for_the_minimum_credit_of_all_sessions(limit: int) -> None:
    allowed = given(limit)
    assert allowed.slots // 2 >= MIN_CREDIT * allowed.sessions


def test_with_many_descriptors_the_fixed_limits_apply() -> None:
    allowed = given(1 << 20, workers=64)
    assert (allowed.sessions, allowed.slots) == (MAX_SESSIONS, MAX_SLOTS)
    assert allowed.format_session_refusal() == f"{MAX_SESSIONS} sessions are open, which is the limit"


def test_the_refusal_shows_the_arithmetic_and_the_remedy() -> None:
    allowed = given(256)
    assert allowed.format_session_refusal() == (
        f"{allowed.sessions} sessions are open, which is the most that 256 descriptors allow: the daemon and its "
        f"workers take {allowed.own_descriptors}, newcomers {SPARE_DESCRIPTORS + KNOCKS}, each session 4, and "
        f"{allowed.slots} are for batches; allow it more open files (ulimit -n, LimitNOFILE= of its unit)"
    )


def test_a_monitor_reserves_descriptors_for_its_connections() -> None:
    assert given(1024, is_monitored=True).own_descriptors == given(1024).own_descriptors + MAX_MONITOR_CONNECTIONS


def test_too_few_descriptors_are_refused_with_the_number_needed() -> None:
    with pytest.raises(ConfigError, match="64 descriptors are too few to serve a trainer: 1 worker ") as refused:
        given(64)
    needed = int(str(refused.value).partition("which makes ")[2].partition(";")[0])
    assert given(needed).sessions == 1
    with pytest.raises(ConfigError):
        given(needed - 1)


def test_streams_added_by_a_reload_must_fit_beside_the_promised_descriptors() -> None:
    allowed = given(1024)
    assert allowed.explain_too_many_streams(1) is None
    assert allowed.explain_too_many_streams(0) is None
    refusal = allowed.explain_too_many_streams(3) or ""
    assert re.match(r"2 more streams would need 14 descriptors, but of 1024 only \d+ are not reserved for tr", refusal)
    assert [given(limit).explain_too_many_streams(1 + RELOADED_STREAMS) for limit in (4096, 1 << 20)] == [None, None]
    assert given(4096).explain_too_many_streams(2 + RELOADED_STREAMS) is not None


def test_a_stream_that_is_reloaded_has_no_more_descriptors_open_than_are_counted(tmp_path: Path) -> None:
    write_images(tmp_path / "data", {"cat": 3}, size=(8, 8))
    before = len(list(Path("/proc/self/fd").iterdir()))
    locks = ManifestLocks().get_or_create_locks(
        {name: tmp_path / f"{name}.lock" for name in ("list", "verdicts", "next")}
    )
    now, then = (
        serve(tmp_path / "data", tmp_path / "state", cache={"path": str(tmp_path / name)}) for name in ("a", "b")
    )
    now = replace(now, manifest_lock=locks["list"], quarantine_lock=locks["verdicts"])
    then = replace(then, manifest_lock=locks["next"])
    register = OpenStreams([now])
    register.add_stream(then)  # as its next version is opened
    assert len(list(Path("/proc/self/fd").iterdir())) - before == STREAM_DESCRIPTORS
    for path in list(register._locks._held):
        register._locks.release_lock(path)
    for stream in (now, then):
        stream.manifest.close()
