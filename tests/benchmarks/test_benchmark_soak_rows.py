"""The soak's table, and what it asks the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

from soak_rows import Table, Totals, Use, most, read, slots_bytes, use_of
from soaking import MIB, ROW


def test_what_was_written_is_read_again_with_gaps_as_gaps(tmp_path: Path) -> None:
    table = Table(tmp_path / "soak.csv")
    for row in (ROW, replace(ROW, time_s=10.5, daemon_bytes=None, life=2)):
        table.add(row)

    assert read(tmp_path / "soak.csv") == table.rows
    assert (tmp_path / "soak.csv").read_text().splitlines()[2].startswith("10.5,2,0.0,,60,")


def test_descriptors_threads_and_slots_are_those_of_the_process() -> None:
    before, end = use_of(os.getpid()), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    descriptor = os.memfd_create("slot")
    try:
        os.write(descriptor, b"x" * MIB)
        after = use_of(os.getpid())
        assert before.descriptors is not None
        assert before.threads is not None
        assert (after.descriptors, after.threads) == (before.descriptors + 1, before.threads + 1)
        assert slots_bytes(os.getpid()) == MIB
    finally:
        end.set()
        thread.join()
        os.close(descriptor)


def test_nothing_is_known_of_a_process_that_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert (use_of(ended.pid), slots_bytes(ended.pid)) == (Use(), None)
    assert (most([None, 3, None, 2]), most([None])) == (3, None)


def test_totals_add_up() -> None:
    assert Totals(10, 1, 2, 1) + Totals(5, 0, 1, 2) == Totals(15, 1, 3, 3)
