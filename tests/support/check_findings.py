"""Made-up findings, for tests of their report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from streamd.cli.check.findings import (
    BadSampleOutcome,
    CheckFindings,
    EpochTimeEstimate,
    ImageSummary,
    MemoryEstimate,
    StreamFinding,
    TrainerCapacity,
    UnreadableFile,
)
from streamd.cli.check.labels import LabelFinding

STREAM: Final = StreamFinding(
    samples=4824,
    read=4824,
    batches=151,
    batch_size=32,
    size=(128, 96),
    bytes=3 << 20,
    root="/data/train",
    labels={"label": LabelFinding("category", {"cat": 2500, "dog": 2324}, 2500 / 2324)},
    pictures=ImageSummary({"JPEG": 4812, "PNG": 12}, {"640x480": 4800, "20x10": 24}, 2, 24),
    unreadable=[],
    duplicates=[],
    bad_samples=BadSampleOutcome("substitute", 0.01, None),
    memory=MemoryEstimate(1 << 20, 16 << 20, 5 << 20, TrainerCapacity(7, 29)),
    epoch=EpochTimeEstimate(8, 41.0, 12.0),
    shuffle_score=1.0,
    stored_score=0.03,
)
BROKEN: Final = UnreadableFile(3, "cat/broken.jpg", "a damaged JPEG", "verdict")


def stream(**changes: Any) -> StreamFinding:
    """STREAM with some fields changed."""
    return replace(STREAM, **changes)


def findings(train: StreamFinding = STREAM, **changes: Any) -> CheckFindings:
    """Findings of a stream `train` alone."""
    return replace(CheckFindings(memory_bytes=64 << 20, workers=8, streams={"train": train}), **changes)
