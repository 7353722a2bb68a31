"""The metrics of a daemon, compared with its trainers' receipts."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.daemon_process import Start, stream_config, wait_until, write_images
from support.monitor_requests import fetch, url_of

import streamd


def scrape(url: str) -> dict[str, float]:
    """Every line by name and labels, in order: `streamd_receipts_total result=ok stream=train`."""
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(fetch(f"{url}/metrics"))
        for sample in family.samples
    }


@pytest.mark.parametrize("changes", [{}, {"shuffle": "none", "drop_remainder": "pad"}], ids=["substituted", "masked"])
def test_the_metrics_agree_with_the_receipts(tmp_path: Path, start_daemon: Start, changes: dict[str, object]) -> None:
    folder = write_images(tmp_path / "data", {"cat": 21, "dog": 12}, size=(16, 16))
    (folder / "cat" / "page.jpg").write_text("<!DOCTYPE html><title>404</title>")
    daemon = start_daemon({"monitor": "127.0.0.1:0", "streams": {"train": stream_config(folder, **changes)}})
    url = url_of(daemon)
    assert fetch(f"{url}/readyz") == "ready\n"
    with pytest.raises(urllib.error.HTTPError, match="421"):
        fetch(f"{url}/metrics", Host="evil.example")
    with streamd.connect(daemon.endpoint) as client:
        with client.subscribe("train", epochs=3, prefetch=2) as first, client.subscribe("train", epochs=2) as second:
            batches = sum(1 for _ in second)
            held = next(iter(first))
            told = scrape(url)
            assert told["streamd_trainer_epoch stream=train trainer=1"] == held.epoch == 0
            assert 1 <= told["streamd_trainer_leases stream=train trainer=1"] <= 2
            assert told["streamd_trainer_info rank=0 stream=train trainer=2 world=1"] == 1
            del held
            batches += 1 + sum(1 for _ in first)
            receipts = [*first.receipts, *second.receipts]
        wait_until(lambda: not client.status().sessions, "both have left")
    told = scrape(url)
    assert told["streamd_receipts_total result=ok stream=train"] == sum(each.ok for each in receipts) == 5
    assert told["streamd_receipts_total result=bad stream=train"] == 0
    assert told["streamd_samples_sent_total stream=train"] == sum(each.samples for each in receipts)
    assert {each.samples for each in receipts} == {33 if changes else 34}
    assert told["streamd_batches_sent_total stream=train"] == sum(each.steps for each in receipts) == batches
    assert told["streamd_bad_samples fault=unfit stream=train"] == 1
    assert told["streamd_decode_seconds_count stream=train"] >= 34 * 3
    assert not [name for name in told if "trainer=" in name]
