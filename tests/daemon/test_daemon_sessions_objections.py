"""What is refused before the window is asked, and whether asking again helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemon_process import write_images
from support.served_folder import serve

from streamd.core.spec import Cursor, OrderId, Segment
from streamd.daemon.sessions import find_subscribe_refusal
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.messages import Subscribe
from streamd.limits import MAX_SESSIONS


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[ServedStream]:
    served = serve(write_images(tmp_path / "data", {"cat": 9, "dog": 8}), tmp_path / "state")
    yield served
    served.manifest.close()


def wish(stream: str = "train", *, rank: int = 0, world: int = 1, cursor: Cursor | None = None) -> Subscribe:
    return Subscribe(stream, rank, world, None, cursor or Cursor(), "drop", 8, "shared", None, resuming=False)


def test_nothing_speaks_against_an_ordinary_wish(stream: ServedStream) -> None:
    assert find_subscribe_refusal(wish(), {"train": stream}, session_count=0, is_draining=False) is None
    assert find_subscribe_refusal(wish(), {"train": stream}, session_count=MAX_SESSIONS - 1, is_draining=False) is None


def test_an_unknown_stream_is_refused_for_good_with_the_near_name(stream: ServedStream) -> None:
    refused = find_subscribe_refusal(wish("trian"), {"train": stream}, session_count=0, is_draining=False)
    assert refused is not None
    assert (refused.why, refused.retry_s) == ("unknown", None)
    assert "did you mean 'train'?" in refused.text


@pytest.mark.parametrize(("rank", "world"), [(1, 1), (-1, 2), (0, 0), (0, 1 << 40)])
def test_a_rank_outside_its_world_is_refused(stream: ServedStream, rank: int, world: int) -> None:
    refused = find_subscribe_refusal(
        wish(rank=rank, world=world), {"train": stream}, session_count=0, is_draining=False
    )
    assert refused is not None
    assert refused.why == "usage"


@pytest.mark.parametrize(("sessions", "draining"), [(MAX_SESSIONS, False), (0, True)])
def test_a_full_or_leaving_daemon_asks_to_come_back(stream: ServedStream, sessions: int, draining: bool) -> None:
    refused = find_subscribe_refusal(wish(), {"train": stream}, session_count=sessions, is_draining=draining)
    assert refused is not None
    assert refused.why == "busy"
    assert refused.retry_s is not None


@pytest.mark.parametrize(
    "history",
    [(Segment(1, 1, 0, 1),), (Segment(0, 1, 2, 2),), (Segment(0, 10**6, 0, 1),), (Segment(0, 1 << 38, 0, 1),)],
)
def test_a_place_that_cannot_be_is_refused(stream: ServedStream, history: tuple[Segment, ...]) -> None:
    refused = find_subscribe_refusal(
        wish(cursor=Cursor(0, history)), {"train": stream}, session_count=0, is_draining=False
    )
    assert refused is not None
    assert refused.why == "token"


def test_another_order_is_refused_with_what_differs_also_far_behind_its_end(stream: ServedStream) -> None:
    other = replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32), batch_size=16, batches=2))
    there = Cursor(0, (Segment(0, 3, 0, 1),))
    asked = Subscribe(
        "train", 0, 1, None, there, "drop", 8, "shared", "0" * 32, resuming=True, order=stream.spec.order_facts
    )
    refused = find_subscribe_refusal(asked, {"train": other}, session_count=0, is_draining=False)
    assert refused is not None
    assert refused.why == "token"
    assert "has another order now: batch_size was 8 and is 16; serve it as it was" in refused.text


def test_another_order_of_who_says_no_more_is_refused_with_both_named(stream: ServedStream) -> None:
    other = replace(stream, spec=replace(stream.spec, order_id=OrderId("f" * 32)))
    asked = Subscribe("train", 0, 1, None, Cursor(), "drop", 8, "shared", stream.spec.order_id, resuming=True)
    refused = find_subscribe_refusal(asked, {"train": other}, session_count=0, is_draining=False)
    assert refused is not None
    assert stream.spec.order_id[:12] in refused.text
    assert "f" * 12 in refused.text
