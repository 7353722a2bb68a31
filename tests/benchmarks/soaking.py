"""Rows of a soak, made up."""

from __future__ import annotations

from dataclasses import replace

from soak_rows import Row

MIB = 1 << 20

ROW = Row(
    time_s=0.0,
    life=1,
    daemon_age_s=0.0,
    daemon_bytes=50 * MIB,
    daemon_descriptors=60,
    daemon_threads=5,
    slots_bytes=20 * MIB,
    accounted_bytes=20 * MIB,
    workers=3,
    worker_bytes=30 * MIB,
    worker_descriptors=20,
    trainers=4,
    trainer_bytes=40 * MIB,
    trainer_descriptors=25,
    trainer_threads=4,
    trainers_bytes=160 * MIB,
    batches_per_s=120.0,
    batches=0,
    epochs=0,
    faults=0,
)


def hour(*, every_s: float = 10.0, life_s: float = 3600.0) -> list[Row]:
    """An hour in which nothing grows; a new daemon begins every `life_s`."""
    return [
        replace(ROW, time_s=at, life=1 + int(at // life_s), daemon_age_s=at % life_s)
        for at in (every_s * number for number in range(int(3600 / every_s)))
    ]
