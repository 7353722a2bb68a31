"""The text that Prometheus reads."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from support.sample_metrics import SESSION, STREAM, figures

from streamd.daemon.monitor.metrics import MetricsExposition, SnapshotCollector
from streamd.daemon.monitor.snapshot import MonitorSnapshot

MANY = 250  # trainers, with ten lines each: more than are written in one turn


def families(told: MonitorSnapshot) -> list[Metric]:
    return list(text_string_to_metric_families(asyncio.run(MetricsExposition(lambda: told).encode_metrics()).decode()))


def test_every_family_is_ours_or_the_processs_comes_once_and_is_explained() -> None:
    told = families(figures(SESSION))
    assert all(each.name.startswith(("streamd_", "process_")) for each in told)
    assert [name for name, count in Counter(each.name for each in told).items() if count > 1] == []
    assert [each.name for each in told if each.type == "unknown" or not each.documentation.endswith(".")] == []


def test_no_family_is_cut_where_others_have_their_turn() -> None:
    trainers = [replace(SESSION, session=number, step=number) for number in range(MANY)]
    steps = next(each for each in families(figures(*trainers)) if each.name == "streamd_trainer_step")
    assert {(sample.labels["trainer"], sample.value) for sample in steps.samples} == {
        (str(number), number) for number in range(MANY)
    }


def test_all_is_of_one_look_and_nobody_looks_before_somebody_asks() -> None:
    looks: list[None] = []

    def look() -> MonitorSnapshot:
        looks.append(None)
        return figures()

    exposition = MetricsExposition(look)
    assert len(looks) == 0
    asyncio.run(exposition.encode_metrics())
    assert len(looks) == 1


def test_it_says_what_the_librarys_own_writer_says_also_of_a_name_that_would_break_lines() -> None:
    strange = replace(STREAM, name='a"b\\c\nd\\n{}', shuffle_score=1e-7)
    told = figures(replace(SESSION, stream=strange.name), streams=[strange])
    theirs = list(text_string_to_metric_families(generate_latest(SnapshotCollector(lambda: told)).decode()))
    ours = [each for each in families(told) if each.name.startswith("streamd_")]
    assert ours == theirs
    assert {sample.labels.get("stream", strange.name) for each in ours for sample in each.samples} == {strange.name}


def test_others_have_their_turn_while_much_is_written() -> None:
    trainers = [replace(SESSION, session=number) for number in range(MANY)]

    async def turns() -> int:
        writing = asyncio.ensure_future(MetricsExposition(lambda: figures(*trainers)).encode_metrics())
        count = 0
        while not writing.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) > 10 * MANY // 100
