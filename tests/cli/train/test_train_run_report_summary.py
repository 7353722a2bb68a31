"""What the end of a training says."""

from __future__ import annotations

from dataclasses import replace

from streamd.cli.train.run import format_receipt, format_results, format_speed
from streamd.core.receipt import Receipt

GOOD = Receipt("train", 3, 125, 4000, 0, 0, 0, 0, changed=False, complete=True, ok=True, digest="")


def test_a_good_epoch_is_one_line_that_ends_in_ok() -> None:
    assert format_receipt(GOOD) == "epoch 3: 125 steps, 4,000 samples, missed 0, repeated 0, bad 0: ok"


def test_what_is_unusual_is_named() -> None:
    line = format_receipt(replace(GOOD, bad=2, dropped=5, changed=True, complete=False))
    assert "bad 2, dropped 5, pixels changed since the token was made, stopped early: ok" in line


def test_a_failed_epoch_says_so() -> None:
    assert format_receipt(replace(GOOD, missed=1, ok=False)).endswith("missed 1, repeated 0, bad 0: NOT OK")


def test_equal_counts_with_unequal_digests_are_told_apart() -> None:
    assert format_receipt(replace(GOOD, ok=False)).endswith("NOT OK, the order differs from the daemon's")


def test_the_speed_has_the_share_of_waiting() -> None:
    text = "3,000 samples in 2.0 s: 1,500 samples/s, 25% of the time waiting for batches"
    assert format_speed(3000, 2.0, 0.5) == text
    assert "0 samples/s" in format_speed(0, 0.0, 0.0)


def test_the_last_epoch_is_summed_up_with_the_lowest_loss_of_the_validation() -> None:
    history = {"loss": [3.0, 0.123456, 0.2], "val_loss": [0.5, 0.4, 0.45], "val_mae": [1.0, 0.5, 2.0]}
    assert format_results(history) == "after 3 epochs: loss 0.2, val_loss 0.45 (lowest 0.4 after 2), val_mae 2"
    assert format_results({"val_loss": [1.0]}) == "after 1 epoch: val_loss 1"
