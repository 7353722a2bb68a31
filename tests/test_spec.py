"""Places in a stream: cursors, tokens, and the refusal of those that are damaged or another's."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_specs import SPEC, some_spec

from streamd.errors import TokenError
from streamd.limits import MAX_SEGMENTS
from streamd.spec import (
    Cursor,
    ImageSpec,
    LabelSpec,
    OrderId,
    PixelId,
    Segment,
    Token,
    check_cursor,
    identity,
    read_token,
    steps_from,
)

CURSOR: Final = Cursor(4, (Segment(0, 2, 1, 3), Segment(6, 1, 0, 2)))
TOKEN: Final = Token("train", SPEC.order_id, SPEC.pixel_id, CURSOR, "0123456789abcdef" * 2)


# --- streams


def test_rows_are_a_batch_but_for_a_kept_remainder() -> None:
    keep, drop, pad = (some_spec(remainder=kind) for kind in ("keep", "drop", "pad"))
    assert [keep.rows(index) for index in (0, 9, 10, 11, 12)] == [10, 10, 3, 10, 10]
    assert {drop.rows(index) for index in range(12)} == {10}
    assert {pad.rows(index) for index in range(12)} == {10}
    assert some_spec(samples=110).rows(10) == 10
    assert sum(keep.rows(index) for index in range(keep.batches)) == keep.samples


def test_an_image_knows_its_shape_and_bytes() -> None:
    image = ImageSpec(height=5, width=7, channels=3)
    assert (image.shape, image.row_bytes) == ((5, 7, 3), 105)
    assert some_spec(image=image).image_shape == (5, 7, 3)


def test_labels_have_the_dtypes_of_the_contract() -> None:
    assert [LabelSpec("x", kind).dtype for kind in ("category", "int", "float")] == ["int64", "int64", "float32"]
    assert LabelSpec("x", "tags", width=3).dtype == "float32"


def test_text_has_room_for_its_longest_bytes_and_at_least_one() -> None:
    assert [LabelSpec("x", "string", text_bytes=longest).dtype for longest in (12, 0)] == ["S12", "S1"]


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SPEC.seed = 4  # type: ignore[misc]  # the very thing that must not work


# --- cursors


def test_steps_of_one_rank_and_world_are_told_as_one_segment() -> None:
    cursor = Cursor(3)
    for _ in range(5):
        cursor = cursor.after_step(1, 4)
    assert cursor == Cursor(3, (Segment(0, 5, 1, 4),))
    assert cursor.base == 20


def test_a_change_of_rank_or_world_begins_a_segment_where_the_last_ended() -> None:
    cursor = Cursor().after_step(3, 4).after_step(0, 4).after_step(0, 3)
    assert cursor.history == (Segment(0, 1, 3, 4), Segment(4, 1, 0, 4), Segment(8, 1, 0, 3))
    assert cursor.base == 11


@settings(derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]), max_size=40))
def test_every_step_moves_the_base_by_its_world(steps: list[tuple[int, int]]) -> None:
    cursor = Cursor(7)
    for rank, world in steps:
        cursor = cursor.after_step(rank, world)
    assert cursor.base == sum(world for _, world in steps)
    assert sum(part.steps for part in cursor.history) == len(steps)
    check_cursor(cursor)


def test_the_next_epoch_begins_anew() -> None:
    assert CURSOR.next_epoch() == Cursor(5, ())
    assert CURSOR.next_epoch().base == 0


def test_steps_left_are_those_that_fit_or_with_pad_those_that_begin() -> None:
    for world, base in product(range(1, 6), range(15)):
        starts = range(base, 11, world)
        assert steps_from(base, world, 11, "pad") == len(starts), (world, base)
        assert steps_from(base, world, 11, "drop") == sum(start + world <= 11 for start in starts), (world, base)


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
def test_a_cursor_that_a_trainer_could_have_is_accepted(history: tuple[Segment, ...]) -> None:
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
def test_a_cursor_that_no_trainer_could_have_is_refused(cursor: Cursor) -> None:
    with pytest.raises(TokenError):
        check_cursor(cursor)


@pytest.mark.parametrize("history", [(Segment(0, 12, 0, 1),), (Segment(0, 4, 0, 4),), (Segment(0, 1 << 39, 0, 1),)])
def test_a_cursor_beyond_the_epochs_end_is_refused(history: tuple[Segment, ...]) -> None:
    with pytest.raises(TokenError, match="does not add up"):
        check_cursor(Cursor(0, history), batches=11)


def test_the_longest_history_that_is_allowed_is_accepted() -> None:
    check_cursor(Cursor(0, tuple(Segment(base, 1, 0, 1) for base in range(MAX_SEGMENTS))))


# --- tokens


def test_a_token_comes_back_from_its_text() -> None:
    assert Token.from_json(TOKEN.to_json()) == TOKEN
    assert read_token(TOKEN.to_json(), SPEC) == TOKEN
    assert read_token(TOKEN.to_json().encode(), SPEC) == TOKEN


CURSORS: Final = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), max_size=20).map(
    lambda parts: _walked([(steps, world) for steps, world in parts])
)


def _walked(parts: list[tuple[int, int]]) -> Cursor:
    cursor = Cursor(1)
    for steps, world in parts:
        for _ in range(steps):
            cursor = cursor.after_step(world - 1, world)
    return cursor


@settings(derandomize=True, deadline=None)
@given(CURSORS)
def test_every_cursor_survives_a_token(cursor: Cursor) -> None:
    token = replace(TOKEN, cursor=cursor)
    assert read_token(token.to_json(), some_spec(batches=1000)) == token


def test_a_token_is_json_so_that_it_can_lie_beside_weights() -> None:
    loaded = json.loads(TOKEN.to_json())
    assert (loaded["version"], loaded["stream"], loaded["order_id"]) == (1, "train", SPEC.order_id)


def test_other_pixels_do_not_make_a_token_useless() -> None:
    assert read_token(TOKEN.to_json(), some_spec(pixel_id=PixelId("f" * 32))) == TOKEN


def test_a_token_of_another_order_is_refused_with_both_identities() -> None:
    with pytest.raises(TokenError, match=r"another order.*0123456789ab.*ffffffffffff"):
        read_token(TOKEN.to_json(), some_spec(order_id=OrderId("f" * 32)))


def test_a_token_of_another_stream_is_refused() -> None:
    with pytest.raises(TokenError, match="of stream 'train', not 'validation'"):
        read_token(TOKEN.to_json(), some_spec(name="validation"))


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
    ],
    ids=lambda text: repr(text)[:40],
)
def test_a_damaged_token_is_refused(text: str | bytes) -> None:
    with pytest.raises(TokenError):
        read_token(text, SPEC)


def test_every_truncation_of_a_token_is_refused() -> None:
    text = TOKEN.to_json().encode()
    for end in range(len(text)):
        with pytest.raises(TokenError):
            read_token(text[:end], SPEC)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.integers(0, len(TOKEN.to_json()) - 1), st.integers(0, 255))
def test_a_token_with_one_other_byte_is_refused_or_sound(place: int, byte: int) -> None:
    text = bytearray(TOKEN.to_json().encode())
    text[place] = byte
    try:
        token = read_token(bytes(text), SPEC)
    except TokenError:
        return
    check_cursor(token.cursor, SPEC.batches)
    assert (token.stream, token.order_id) == (SPEC.name, SPEC.order_id)


# --- identities


def test_an_identity_is_what_it_always_was() -> None:
    assert identity("streamd", 1, b"x") == IDENTITY


def test_parts_are_told_apart_by_their_lengths() -> None:
    assert len({identity("ab", "c"), identity("a", "bc"), identity("abc"), identity("abc", ""), identity()}) == 5


def test_numbers_bytes_and_text_of_the_same_letters_are_the_same_part() -> None:
    assert identity(12) == identity("12") == identity(b"12")


IDENTITY: Final = "3209a6ccb9df238c33231c8bd1dbfecb"
