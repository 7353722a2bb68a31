"""Tokens round-trip, serve any rank of any world, and are refused when damaged or of another stream."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rank_receipts import digest_of
from support.sample_specs import SPEC, some_spec

from streamd.core.receipt import EpochTally, TallyStart, TallyTotals, format_digest
from streamd.core.sampler import Ids, build_all_good_row_status
from streamd.core.sampler import compute_batch_index_ranges as walks
from streamd.core.spec import Cursor, OrderId, PixelId, RankSteps, Segment, UnevenPolicy, count_steps_left
from streamd.core.token import (
    Token,
    check_cursor,
    encode_token,
    explain_order_mismatch,
    parse_token,
    parse_token_for_rank,
    resume_tally,
)
from streamd.errors import TokenError
from streamd.limits import MAX_SEGMENTS

CURSOR: Final = Cursor(4, (Segment(0, 2, 1, 3), Segment(6, 1, 0, 2)))
TOKEN: Final = Token("train", SPEC.order_id, SPEC.pixel_id, CURSOR, "0123456789abcdef" * 2)


# --- cursors from elsewhere


@pytest.mark.parametrize(
    "history",
    [
        (),
        (Segment(0, 11, 0, 1),),
        (Segment(0, 3, 2, 4),),
        (Segment(0, 2, 3, 4), Segment(8, 1, 0, 3)),
        (Segment(0, 1, 5, 1000),),
    ],
    ids=str,
)
def test_a_possible_cursor_is_accepted(history: tuple[Segment, ...]) -> None:
    check_cursor(Cursor(2, history), batches=11)


@pytest.mark.parametrize(
    "cursor",
    [
        Cursor(-1),
        Cursor(1 << 40),
        Cursor(0, (Segment(1, 1, 0, 1),)),
        Cursor(0, (Segment(-1, 1, 0, 1),)),
        Cursor(0, (Segment(0, 1, 0, 0),)),
        Cursor(0, (Segment(0, 1, -1, 1),)),
        Cursor(0, (Segment(0, 1, 2, 2),)),
        Cursor(0, (Segment(0, 1, 0, 1 << 20),)),
        Cursor(0, (Segment(0, -1, 0, 1),)),
        Cursor(0, (Segment(0, 0, 0, 1),)),
        Cursor(0, (Segment(0, 1 << 41, 0, 1),)),
        Cursor(0, (Segment(0, 2, 0, 1), Segment(3, 1, 0, 1))),
        Cursor(0, (Segment(0, 2, 0, 1), Segment(1, 1, 0, 1))),
        Cursor(0, (Segment(0, 2, 0, 1), Segment(0, 2, 0, 1))),
        Cursor(0, tuple(Segment(base, 1, 0, 1) for base in range(MAX_SEGMENTS + 1))),
    ],
    ids=lambda cursor: str(cursor)[:90],
)
def test_an_impossible_cursor_is_refused(cursor: Cursor) -> None:
    with pytest.raises(TokenError):
        check_cursor(cursor)


@pytest.mark.parametrize("history", [(Segment(0, 12, 0, 1),), (Segment(0, 4, 0, 4),), (Segment(0, 1 << 39, 0, 1),)])
def test_a_cursor_beyond_the_epochs_end_is_refused(history: tuple[Segment, ...]) -> None:
    with pytest.raises(TokenError, match="does not add up"):
        check_cursor(Cursor(0, history), batches=11)


def test_the_longest_allowed_history_is_accepted() -> None:
    check_cursor(Cursor(0, tuple(Segment(base, 1, 0, 1) for base in range(MAX_SEGMENTS))))


# --- tokens


def test_a_token_round_trips_through_its_text() -> None:
    assert Token.from_json(TOKEN.to_json()) == TOKEN
    assert parse_token(TOKEN.to_json(), SPEC) == TOKEN
    assert parse_token(TOKEN.to_json().encode(), SPEC) == TOKEN
    full = replace(TOKEN, samples=30, bad=2, rows=3, world=4, changed=True, order=SPEC.order_facts)
    assert parse_token(full.to_json(), SPEC) == full


def test_a_token_of_an_older_version_is_accepted() -> None:
    old = {key: value for key, value in json.loads(TOKEN.to_json()).items() if key not in {"changed", "order"}}
    assert parse_token(json.dumps(old), SPEC) == TOKEN


@pytest.mark.parametrize("text", [None, 5, 1.5, {}, [], ("{}",), bytearray(b"{}")], ids=repr)
def test_a_token_that_is_not_text_is_refused_and_its_type_named(text: Any) -> None:
    with pytest.raises(TokenError, match=f"a token is text, as batch.token gives it, .* type {type(text).__name__}$"):
        Token.from_json(text)


Stay = tuple[int, int, int, UnevenPolicy]  # a rank, its world, so many steps at most, what becomes of an uneven end
BATCHES: Final = 40
STAYS: Final = st.lists(
    st.integers(1, 9).flatmap(
        lambda world: st.tuples(
            st.integers(0, world - 1), st.just(world), st.integers(0, 9), st.sampled_from(["drop", "pad"])
        )
    ),
    max_size=60,
)


def reached(stays: list[Stay], begin: int = 0) -> Cursor:
    """Where a trainer stands that was resumed in each of these worlds, as far as the epoch goes."""
    cursor = Cursor(7, begin=begin)
    for rank, world, steps, uneven in stays:
        for _ in range(min(steps, count_steps_left(cursor.next_base_index, world, BATCHES, uneven))):
            cursor = cursor.after_step(rank, world)
    return cursor


@settings(derandomize=True, deadline=None)
@given(STAYS, st.integers(0, BATCHES - 1))
def test_every_reachable_cursor_round_trips_through_a_token(stays: list[Stay], begin: int) -> None:
    token = replace(TOKEN, cursor=reached(stays, begin))
    assert parse_token(token.to_json(), some_spec(batches=BATCHES, samples=BATCHES * 10)) == token


@settings(derandomize=True, deadline=None)
@given(STAYS, st.integers(1, 9), st.sampled_from(["drop", "pad"]))
def test_a_cursor_gives_the_batches_taken_and_those_left(stays: list[Stay], world: int, uneven: UnevenPolicy) -> None:
    walked: list[int] = []
    cursor = Cursor(7)
    for rank, of, steps, rule in stays:
        keys = RankSteps(BATCHES, rank, of, rule, 8).iterate_batches(cursor)
        for _, index in islice(keys, steps):
            walked.append(index)
            cursor = cursor.after_step(rank, of)
    assert cursor == reached(stays)
    assert [index for walk in walks(cursor.history) for index in walk] == walked
    rest = [
        index
        for rank in range(world)
        for _, index in RankSteps(BATCHES, rank, world, uneven, 8).iterate_batches(cursor)
    ]
    assert sorted(rest) == list(range(cursor.next_base_index, cursor.next_base_index + len(rest)))
    assert len(rest) == count_steps_left(cursor.next_base_index, world, BATCHES, uneven) * world


@settings(derandomize=True, deadline=None)
@given(STAYS, st.integers(1, 9), st.integers(1, 5), st.data())
def test_any_ranks_token_of_a_step_serves_every_rank_of_any_world(
    stays: list[Stay], world: int, steps: int, data: st.DataObject
) -> None:
    before = reached(stays)
    steps = min(steps, count_steps_left(before.next_base_index, world, BATCHES, "drop"))
    cursors = [before] * world
    for rank in range(world):
        for _ in range(steps):
            cursors[rank] = cursors[rank].after_step(rank, world)
    other = data.draw(st.integers(1, 9))
    going_on = {tuple(RankSteps(BATCHES, other - 1, other, "drop", 9).iterate_batches(cursor)) for cursor in cursors}
    assert len(going_on) == 1


def test_a_token_is_accepted_after_pixels_changed() -> None:
    assert parse_token(TOKEN.to_json(), some_spec(pixel_id=PixelId("f" * 32))) == TOKEN


def test_a_token_without_order_facts_is_refused_with_both_identities() -> None:
    with pytest.raises(
        TokenError, match=r"a different order now: .* for order 0123456789ab, but order ffffffffffff is served"
    ):
        parse_token(TOKEN.to_json(), some_spec(order_id=OrderId("f" * 32)))


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"batch_size": 64}, "batch_size was 10 and is 64"),
        ({"seed": 5, "shuffle": "none"}, "shuffle.kind was full and is none; shuffle.seed was 3 and is 5"),
        ({"shuffle": "chunk", "chunk": 32, "buffer": 4}, "shuffle.kind was full and is chunk"),
        ({"remainder": "drop"}, "drop_remainder was false and is true"),
        ({"samples": 1104}, "the files or labels differ: 103 samples then, 1,104 now"),
        ({"content_id": "f" * 32}, "the files or labels differ: 103 samples then, 103 now"),
        (
            {"seed": 5, "content_id": "f" * 32},
            "shuffle.seed was 3 and is 5; the files or labels differ: 103 samples then, 103 now",
        ),
        ({}, "another version of streamd made it"),
    ],
)
def test_a_token_of_another_order_is_refused_and_the_difference_named(now: dict[str, Any], says: str) -> None:
    token = replace(TOKEN, order=SPEC.order_facts)
    with pytest.raises(TokenError) as refused:
        parse_token(token.to_json(), some_spec(order_id=OrderId("f" * 32), **now))
    assert str(refused.value) == (
        f"stream 'train' has a different order now: {says}; to continue, serve the stream as it was before, or "
        "subscribe without a token to start from the beginning"
    )


def test_a_token_of_an_order_with_other_chunks_is_refused() -> None:
    chunked = some_spec(shuffle="chunk", chunk=3200, buffer=16)
    token = replace(TOKEN, order=chunked.order_facts)
    with pytest.raises(TokenError, match=r"shuffle\.chunk was 3200 and is 320; shuffle\.buffer was 16 and is 4;"):
        parse_token(token.to_json(), replace(chunked, order_id=OrderId("f" * 32), chunk=320, buffer=4))


def test_a_token_of_another_stream_is_refused() -> None:
    with pytest.raises(TokenError, match="belongs to stream 'train', not to 'validation'"):
        parse_token(TOKEN.to_json(), some_spec(name="validation"))


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(TOKEN.to_json()), **fields})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no token",
        "null",
        "[]",
        "{}",
        b"\xff\xfe",
        b'{"stream": "\xff"}',
        '{"stream": "\udcff"}',
        '{"x":' + "[" * 100_000,
        TOKEN.to_json() + "x",
        TOKEN.to_json()[:-1],
        changed(version=2),
        changed(version="1"),
        changed(digest=""),
        changed(digest="x" * 32),
        changed(digest="-" + "0" * 31),
        changed(digest=None),
        changed(cursor=None),
        changed(cursor={"epoch": -1, "history": []}),
        changed(cursor={"epoch": 10**30, "history": []}),
        changed(cursor={"epoch": 0, "history": [{"base": 0, "steps": 1 << 39, "rank": 0, "world": 1}]}),
        changed(cursor={"epoch": 0, "history": [{"base": 5, "steps": 1, "rank": 0, "world": 1}]}),
        changed(rows=10),
        changed(rows=-1),
        changed(samples=31),
        changed(samples=-1),
        changed(bad=31),
        changed(bad=-1),
        changed(order={}),
    ],
    ids=lambda text: repr(text)[:40],
)
def test_a_damaged_token_is_refused(text: str | bytes) -> None:
    with pytest.raises(TokenError):
        parse_token(text, SPEC)


@pytest.mark.parametrize(("done", "rows", "sound"), [(10, 2, True), (10, 3, False), (11, 0, True), (11, 1, False)])
def test_a_token_within_a_batch_counts_fewer_rows_than_the_batch_has(done: int, rows: int, sound: bool) -> None:
    token = replace(TOKEN, cursor=Cursor(0, (Segment(0, done, 0, 1),)), rows=rows)
    with nullcontext() if sound else pytest.raises(TokenError, match=f"damaged: {rows} rows"):
        parse_token(token.to_json(), SPEC)


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.binary() | st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_arbitrary_data_is_refused_as_a_token(text: str | bytes) -> None:
    with pytest.raises(TokenError):
        Token.from_json(text)


def test_every_truncation_of_a_token_is_refused() -> None:
    text = TOKEN.to_json().encode()
    for end in range(len(text)):
        with pytest.raises(TokenError):
            parse_token(text[:end], SPEC)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, len(TOKEN.to_json()) - 1), st.integers(0, 255))
def test_a_token_with_one_changed_byte_is_refused_or_valid(place: int, byte: int) -> None:
    text = bytearray(TOKEN.to_json().encode())
    text[place] = byte
    try:
        token = parse_token(bytes(text), SPEC)
    except TokenError:
        return
    check_cursor(token.cursor, SPEC.batches)
    assert (token.stream, token.order_id) == (SPEC.name, SPEC.order_id)


def test_the_advice_on_another_order_differs_for_a_reader_and_a_token() -> None:
    said = explain_order_mismatch("f" * 32, None, SPEC, is_running=True)
    assert "or subscribe again to start from the beginning" in said
    assert "or subscribe without a token to start from the beginning" in explain_order_mismatch("f" * 32, None, SPEC)


# --- a place written as text is the place that is read again


FOURS: Final = some_spec(batch_size=4)


def ids(index: int) -> Ids:
    return np.arange(4 * index, 4 * index + 4, dtype=np.int64)


def tally_after(steps: int) -> EpochTally:
    """One trainer's account when it has taken the first batches."""
    tally = EpochTally(FOURS.name, FOURS.order_id, Cursor(), pixel_id=FOURS.pixel_id)
    for index in range(steps):
        tally.add_batch(index, ids(index), build_all_good_row_status(4), tally.cursor.after_step(0, 1))
    return tally


def test_a_token_gives_back_the_tally_it_was_made_of() -> None:
    tally = tally_after(3)

    token = parse_token_for_rank(encode_token(FOURS, tally.take_snapshot()), FOURS, 1)

    assert token.cursor == tally.cursor
    assert (token.samples, token.bad, token.digest) == (12, 0, digest_of(tally))


def test_later_batches_do_not_change_a_tokens_digest() -> None:
    tally = tally_after(1)
    then = tally.take_snapshot()
    expected = format_digest(then.compute_totals().lanes)

    for index in range(1, 100):
        tally.add_batch(index, ids(index), build_all_good_row_status(4), tally.cursor.after_step(0, 1))

    assert parse_token_for_rank(encode_token(FOURS, then), FOURS, 1).digest == expected


def test_a_token_within_a_batch_is_valid_only_for_the_same_world() -> None:
    text = encode_token(FOURS, tally_after(2).take_snapshot(), rows=2, world=3)

    assert parse_token_for_rank(text, FOURS, 3).rows == 2
    with pytest.raises(TokenError, match="within a batch, after 2 rows, with world=3:"):
        parse_token_for_rank(text, FOURS, 1)


def test_a_token_within_a_short_last_batch_needs_equal_steps_on_all_ranks() -> None:
    spec = some_spec(samples=22, batch_size=8, batches=3)  # the last of six rows
    segment, start = Segment(0, 1, 0, 2), TallyStart(TallyTotals(samples=8), ("0" * 32,))
    tally = EpochTally(spec.name, spec.order_id, Cursor(0, (segment,)), start, pixel_id=spec.pixel_id)
    text = encode_token(spec, tally.take_snapshot(), rows=2, world=2)

    assert parse_token_for_rank(text, spec, 2, 2).rows == 2
    with pytest.raises(TokenError, match=r"with batches of 4, not every rank .* a batch_size that divides 2$"):
        parse_token_for_rank(text, spec, 2, 4)
    whole = some_spec(samples=24, batch_size=8, batches=3)
    assert parse_token_for_rank(text, whole, 2, 4).rows == 2


def test_a_token_carries_the_digest_of_each_segment() -> None:
    tally = tally_after(2)
    token = parse_token(encode_token(FOURS, tally.take_snapshot()), FOURS)
    assert token.digests == (digest_of(tally),)

    resumed = resume_tally(token, FOURS, RankSteps(FOURS.batches, 1, 2, "drop", None))
    index = resumed.cursor.next_base_index + 1
    resumed.add_batch(index, ids(index), build_all_good_row_status(4), resumed.cursor.after_step(1, 2))
    later = parse_token(encode_token(FOURS, resumed.take_snapshot()), FOURS)

    assert later.digests[0] == digest_of(tally)
    assert len(later.digests) == 2


def test_a_token_of_an_older_version_knows_the_digest_of_its_only_segment() -> None:
    text = encode_token(FOURS, tally_after(2).take_snapshot())
    token = parse_token(text, FOURS)
    old = replace(token, digests=())
    assert parse_token(old.to_json(), FOURS).segment_digests == token.digests


def test_a_token_whose_segment_digests_do_not_add_up_is_damaged() -> None:
    token = parse_token(encode_token(FOURS, tally_after(2).take_snapshot()), FOURS)
    with pytest.raises(TokenError, match="the digests of its 1 segments do not add up"):
        parse_token(replace(token, digests=("1" * 32,)).to_json(), FOURS)
    with pytest.raises(TokenError, match="do not add up"):
        parse_token(replace(token, digests=(*token.digests, token.digest)).to_json(), FOURS)
