"""Connections alone, from another user of the group, end nothing and slow nobody down."""

from __future__ import annotations

import pytest
from siege import Record, besiege


@pytest.mark.abuse("1a", "a connection claims the next routing id of the socket")
def test_a_claimed_routing_id_ends_nothing(record_property: Record) -> None:
    with besiege() as siege:
        siege.withstand("claim_next_id", rounds=2)
        siege.end(record_property)
