"""What is told of each trainer."""

from __future__ import annotations

from dataclasses import replace

from support.sample_metrics import SESSION, figures, values

from streamd.daemon.monitor.metrics import build_trainer_metrics

NEW = replace(SESSION, session=8, epoch=0, step=0, last_epoch=None)


def test_a_trainer_is_known_by_its_stream_and_number() -> None:
    told = values(build_trainer_metrics(figures(SESSION)))
    assert told.pop("trainer_info{rank=1,stream=train,trainer=7,world=2}") == 1
    expected = {
        "epoch": 3, "step": 40, "steps": 62, "samples_per_second": 80, "credit": 16, "leases": 5,
        "epoch_seconds": 43, "epoch_wait_seconds": 2, "lag_steps": 0,
    }  # fmt: skip
    assert told == {f"trainer_{name}{{stream=train,trainer=7}}": value for name, value in expected.items()}


def test_one_in_its_first_epoch_has_no_time_of_one_and_is_behind() -> None:
    told = values(build_trainer_metrics(figures(SESSION, NEW)))
    assert "trainer_epoch_seconds{stream=train,trainer=8}" not in told
    assert told["trainer_lag_steps{stream=train,trainer=8}"] == 3 * 62 + 40


def test_nobody_there_is_no_line() -> None:
    assert values(build_trainer_metrics(figures())) == {}
