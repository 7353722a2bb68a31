"""What streamd shows to others is what it has shown before, to the byte where it has bytes."""

from __future__ import annotations

import pytest
from support.golden_observations import GOLDEN, observe_all

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


def test_wire_streams_status_metrics_and_check_are_as_they_were() -> None:
    observed = observe_all()

    assert observed == {name: (GOLDEN / name).read_text(encoding="utf-8") for name in observed}
