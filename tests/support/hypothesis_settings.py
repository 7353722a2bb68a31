"""How long Hypothesis explores a state machine.

The same steps in every run, and few of them. `STREAMD_EXAMPLES=20000 pytest tests/scheduler/test_scheduler_states.py`
tries as many that nobody has tried before, and tells the shortest that fails.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

seldom: Final = st.sampled_from([True, False, False, False])  # for what leaves little to happen after it

_ASKED: Final = int(os.environ.get("STREAMD_EXAMPLES", "0"))
_EVERY_DAY: Final = 120


def explored(examples: int = _ASKED or _EVERY_DAY, *, shrink: bool = True) -> settings:
    """Settings of a machine; without `shrink` the first failure is reported unchanged."""
    return settings(
        max_examples=examples,
        stateful_step_count=50,
        derandomize=not _ASKED,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
