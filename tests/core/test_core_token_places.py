"""A place written as text is the place that is read again, for the stream and the rank that it is of."""

from __future__ import annotations

import numpy as np
import pytest
from support.sample_specs import some_spec

from streamd.core.bad_samples import build_all_good_row_status
from streamd.core.receipt import EpochTally, TallyTotals, format_digest
from streamd.core.sampler import Ids
from streamd.core.spec import Cursor, Segment
from streamd.core.token import encode_token, parse_token_for_rank
from streamd.errors import TokenError

SPEC = some_spec(batch_size=4)


def ids(index: int) -> Ids:
    return np.arange(4 * index, 4 * index + 4, dtype=np.int64)


def tally_after(steps: int) -> EpochTally:
    """One trainer's account when it has taken the first batches."""
    tally = EpochTally(SPEC.name, SPEC.order_id, Cursor(), pixel_id=SPEC.pixel_id)
    for index in range(steps):
        tally.add_batch(index, ids(index), build_all_good_row_status(4), tally.cursor.after_step(0, 1))
    return tally


def test_what_was_taken_is_read_again() -> None:
    tally = tally_after(3)

    token = parse_token_for_rank(encode_token(SPEC, tally.take_snapshot()), SPEC, 1)

    assert token.cursor == tally.cursor
    assert (token.samples, token.bad, token.digest) == (12, 0, tally.order_digest)


def test_a_place_is_that_of_its_moment_whatever_is_taken_and_added_up_later() -> None:
    tally = tally_after(1)
    then = tally.take_snapshot()
    expected = format_digest(then.compute_totals().lanes)

    for index in range(1, 100):
        tally.add_batch(index, ids(index), build_all_good_row_status(4), tally.cursor.after_step(0, 1))

    assert parse_token_for_rank(encode_token(SPEC, then), SPEC, 1).digest == expected


def test_a_place_within_a_batch_is_for_ranks_of_the_world_that_took_it_in_parts() -> None:
    text = encode_token(SPEC, tally_after(2).take_snapshot(), rows=2, world=3)

    assert parse_token_for_rank(text, SPEC, 3).rows == 2
    with pytest.raises(TokenError, match="2 rows within the batches that world 3 took at a time"):
        parse_token_for_rank(text, SPEC, 1)


def test_ranks_go_on_within_a_short_last_batch_only_where_all_have_as_many_steps_left() -> None:
    spec = some_spec(samples=22, batch_size=8, batches=3)  # the last of six rows
    segment = Segment(0, 1, 0, 2)
    tally = EpochTally(spec.name, spec.order_id, Cursor(0, (segment,)), TallyTotals(samples=8), pixel_id=spec.pixel_id)
    text = encode_token(spec, tally.take_snapshot(), rows=2, world=2)

    assert parse_token_for_rank(text, spec, 2, 2).rows == 2
    with pytest.raises(TokenError, match=r"with batches of 4 not every rank .* a batch_size that divides 2$"):
        parse_token_for_rank(text, spec, 2, 4)
    whole = some_spec(samples=24, batch_size=8, batches=3)
    assert parse_token_for_rank(text, whole, 2, 4).rows == 2
