"""A stream of eleven batches, ten of 8 samples and one of 4, and a reader of it."""

from __future__ import annotations

import os
from typing import Any, Final

from streamd.client import Client

FULL: Final = os.environ.get("FAULTS_FULL") == "1"  # as tests/faults: set by `scripts/test --faults`
CLASSES: Final = {"cat": 40, "dog": 44}
SAMPLES: Final = 84
STEPS: Final = 11


def rows(batches: Any) -> list[int]:
    """Every sample that was delivered, in order."""
    return [each for batch in batches for each in batch.sample_ids.tolist() if each >= 0]


def all_rows(client: Client, epochs: int = 1) -> list[int]:
    with client.subscribe("train", epochs=epochs) as stream:
        return rows(stream)
