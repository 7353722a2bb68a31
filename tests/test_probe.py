"""Draining a stream, and the account of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from daemons import DaemonProcess, stream_config, write_images

from streamd import probe
from streamd.errors import ReceiptError, RefusedError
from streamd.probe import Probe
from streamd.receipts import Receipt

RECEIPT = Receipt("train", 0, 4, 32, 0, 0, 0, 0, changed=False, complete=True, ok=True, digest="00")
PROBE = Probe("train", [100.0, 3000.0], [0.25, 0.5], 1.0, [RECEIPT, RECEIPT], None)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 16, "dog": 16})
    daemon = DaemonProcess(place, {"streams": {"train": stream_config(folder)}}).start()
    yield daemon.endpoint
    daemon.kill()


def test_trainers_in_processes_see_the_same_and_their_account_has_an_entry_each(endpoint: str) -> None:
    said: list[str] = []
    result = probe.drain_all("train", endpoint, epochs=2, trainers=2, digest=True, say=said.append)
    assert said == ["draining 2 epochs of train in 2 processes"]
    assert [len(result.samples_per_s), len(result.wait_fraction), len(result.receipts)] == [2, 2, 4]
    assert all(rate > 0 for rate in result.samples_per_s)
    assert all(0 <= fraction <= 1 for fraction in result.wait_fraction)
    assert [receipt.samples for receipt in result.receipts] == [32] * 4
    assert 1 <= result.decodes_per_batch <= 2
    assert result.ok
    assert result.digest is not None
    assert len(set(result.digest)) == 2


def test_the_digest_is_the_same_whoever_drains_and_none_unless_asked(endpoint: str) -> None:
    once = [probe.drain("train", endpoint, 1, digest=True, ready=lambda: None) for _ in range(2)]
    assert once[0].digest == once[1].digest
    assert len(once[0].digest) == 1
    result = probe.drain_all("train", endpoint, epochs=1, trainers=1, digest=False, say=lambda _: None)
    assert result.digest is None


def test_samples_are_counted_from_the_first_batch_to_the_last(endpoint: str) -> None:
    drained = probe.drain("train", endpoint, 1, digest=False, ready=lambda: None)
    assert drained.samples == 32 - 8
    assert 0 <= drained.wait_s <= drained.seconds


def test_an_unknown_stream_is_refused_before_any_process_starts(endpoint: str) -> None:
    with pytest.raises(RefusedError, match="did you mean 'train'"):
        probe.drain_all("tran", endpoint, epochs=1, trainers=2, digest=False, say=pytest.fail)


def test_trainers_that_saw_different_data_are_an_error() -> None:
    assert probe._agreed([["a", "b"], ["a", "b"]]) == ["a", "b"]
    with pytest.raises(ReceiptError, match="the trainers saw different data"):
        probe._agreed([["a", "b"], ["a", "c"]])


def test_people_read_rates_waiting_decodes_and_receipts() -> None:
    assert replace(PROBE, digest=["0123"]).lines() == [
        "stream train, 2 trainers: 3,100 samples/s in all",
        "  samples/s each   100, 3,000 (median 1,550)",
        "  time waiting     25%, 50%",
        "  decodes/batch    1.00",
        "  receipts         all ok: missed 0, repeated 0",
        "  digest           0123",
    ]


def test_one_bad_receipt_makes_the_whole_not_ok() -> None:
    bad = replace(RECEIPT, missed=2, repeated=1, ok=False)
    result = replace(PROBE, receipts=[RECEIPT, bad, RECEIPT, RECEIPT])
    assert not result.ok
    assert "NOT OK: missed 2, repeated 1" in "\n".join(result.lines())
