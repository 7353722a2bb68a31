"""Daemons on many hosts, each with its own ranks of one job: hosts fail, and it is still one epoch."""

from __future__ import annotations

import pytest
from job_on_hosts import Job

from streamd.core.rank_receipts import add_up_receipts


def check_one_epoch(job: Job) -> None:
    assert job.broken == []
    assert job.deaths >= len(job.worlds) - 1
    assert sorted(job.taken) == list(range(job.batches - job.dropped))
    assert 0 <= job.dropped < job.worlds[-1]
    (found,) = add_up_receipts(job.receipts)
    assert found.is_one_epoch, "\n".join(found.format_lines())
    assert found.dropped.size == job.dropped
    assert len(found.by_token) == len(job.worlds) - 1


@pytest.mark.parametrize("seed", range(5))
def test_a_job_on_six_hosts_that_lose_hosts_is_one_epoch(seed: int) -> None:
    check_one_epoch(Job(seed, hosts=6, ranks=2, batches=150, legs=3).run())


@pytest.mark.long
def test_a_hundred_daemons_with_ten_ranks_each_are_one_epoch_while_hosts_fail() -> None:
    job = Job(7, hosts=100, ranks=10, batches=14_300, legs=4).run()
    assert job.worlds[0] == 1000
    assert len(set(job.worlds)) > 1
    check_one_epoch(job)


def test_a_receipt_that_is_lost_would_be_noticed() -> None:
    job = Job(1, hosts=4, ranks=2, batches=90, legs=2).run()
    lost = next(each for each in job.receipts if each.receipt.complete)
    (found,) = add_up_receipts(each for each in job.receipts if each != lost)
    assert found.missing.size == lost.receipt.segments[-1].steps
