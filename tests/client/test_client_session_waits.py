"""Waits of a training loop for its daemon and for the receipt of an epoch."""

from __future__ import annotations

import io
import re
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from support.daemon_messages import SPEC, WISH
from support.daemon_process import LIMIT_S, Start, stream_config, wait_until, write_images

import streamd
from streamd.client import Stream
from streamd.client.batch import BatchSplit
from streamd.client.waiting import AbsenceReporter
from streamd.errors import ConnectError


def test_a_waiting_loop_prints_that_its_daemon_is_gone_and_where_it_resumes(
    start_daemon: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    folder = write_images(tmp_path / "data", {"cat": 160})
    daemon = start_daemon({"streams": {"train": stream_config(folder), "validation": stream_config(folder)}})
    with (
        streamd.connect(daemon.endpoint) as client,
        client.subscribe("train", epochs=1) as stream,
        client.subscribe("validation"),  # at rest: it says nothing
    ):
        batches = iter(stream)
        taken = [batch.index for batch in islice(batches, 3)]
        daemon.process.kill()
        daemon.process.wait()
        loop = threading.Thread(target=lambda: taken.extend(batch.index for batch in batches))
        loop.start()
        wait_until(lambda: "\n" in stderr.getvalue(), "it says that the daemon is gone")
        next_index = len(taken)  # a batch that was sent before the end may have been taken after it
        daemon.start()
        loop.join(LIMIT_S)
        assert taken == list(range(20))
    gone, back = (re.sub(r"\d+ s;", "N s;", line) for line in stderr.getvalue().splitlines())
    assert gone == f"streamd: no daemon at {daemon.endpoint} for N s; waiting until it is back"
    place = f"stream 'train' continues at epoch 0, index {next_index}"
    assert back == f"streamd: the daemon at {daemon.endpoint} is back after N s; {place}"


@pytest.mark.parametrize("wait", [lambda stream: next(iter(stream)), Stream._finish_epoch])
def test_a_wait_for_a_missing_daemon_ends_when_patience_is_exhausted(wait: Callable[[Stream], object]) -> None:
    split, reporter = BatchSplit.from_batch_size(SPEC, None), AbsenceReporter()
    with (
        Stream("ipc:///no/such/folder/s", split, WISH, None, 0.05, reporter, lambda _: {}) as stream,
        pytest.raises(ConnectError, match="which is as long as patience allows"),
    ):
        wait(stream)
