"""The client's side of the protocol: subscribing, refusals, reconnecting, ending, and which batches it accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs
from support.daemon_messages import (
    BOOT,
    HERE,
    NUMBER,
    SPEC,
    WISH,
    active,
    asking,
    deliver,
    failure,
    ready,
    told,
    welcome,
)

from streamd.client.session import (
    ClientAction,
    ClientSession,
    OpenSocket,
    SendMessage,
)
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.spec import Cursor, ImageSpec, OrderId, PixelId, Segment
from streamd.errors import RefusedError, StreamChangedError, StreamStoppedError, TokenError
from streamd.ipc.messages import (
    EMPTY_HEADER,
    Draining,
    FrameHeader,
    Goodbye,
    Progress,
    ReceiptDue,
    ReceiptSeen,
    Refusal,
    Refused,
    SlotsGone,
    Stopped,
    Streams,
    Subscribe,
)
from streamd.limits import ANSWER_TIMEOUT_S, BACKOFF_MAX_S, BACKOFF_MIN_S, PROGRESS_DELAY_S

# --- subscribing


def test_a_new_session_asks_for_a_socket_at_once() -> None:
    session = ClientSession(WISH)

    assert session.next_deadline_s() == 0.0
    assert session.handle_deadline(0.0) == [OpenSocket()]


def test_an_open_socket_is_used_to_subscribe_at_the_loops_cursor() -> None:
    cursor = Cursor(1, (Segment(0, 3, 0, 1),))
    session = ClientSession(WISH, SPEC)

    said = session.handle_opened(cursor, 5.0)

    wanted = Subscribe("train", 0, 1, 2, cursor, "drop", 8, "shared", "order", resuming=False, order=SPEC.order_facts)
    assert said == [SendMessage(EMPTY_HEADER, wanted)]
    assert session.state == "asking"
    assert session.next_deadline_s() == 5.0 + ANSWER_TIMEOUT_S


def test_a_welcome_is_accepted_and_answered_with_its_full_credit() -> None:
    session = asking()

    assert session.handle_message(HERE, welcome(6), 0.1) == [
        welcome(6),
        SendMessage(HERE, Progress(6, (), 0, 0)),
    ]
    assert session.state == "active"
    assert session.next_deadline_s() is None
    assert session.spec == SPEC
    assert session.reconnects == 0


def lost() -> ClientSession:
    """A session that was active, and asks again on a new connection."""
    session = active()
    session.handle_lost(1.0)
    session.handle_opened(Cursor(), 2.0)
    return session


@pytest.mark.parametrize(
    ("begin", "why", "kind"),
    [
        pytest.param(asking, "memory", RefusedError, id="too little memory"),
        pytest.param(asking, "token", TokenError, id="a token of another order"),
        pytest.param(lost, "token", StreamChangedError, id="a running stream of a different order now"),
        pytest.param(lost, "unknown", StreamChangedError, id="a running stream that is not served any more"),
    ],
)
def test_a_final_refusal_ends_it_with_the_daemons_words(
    begin: Callable[[], ClientSession], why: Refusal, kind: type[Exception]
) -> None:
    session = begin()
    error = failure(session.handle_message(EMPTY_HEADER, Refused(why, "not that"), 2.1))
    assert type(error) is kind
    assert str(error) == "not that"
    assert session.state == "over"
    assert session.next_deadline_s() is None


def test_a_temporary_refusal_is_retried_after_the_given_delay() -> None:
    session = asking()

    assert session.handle_message(EMPTY_HEADER, Refused("memory", "later", 0.5), 10.0) == []
    assert session.state == "away"
    assert session.next_deadline_s() == 10.5
    assert session.handle_deadline(10.5) == [OpenSocket()]


@pytest.mark.parametrize("is_admitted", [True, False])
def test_a_refusal_is_forgotten_when_the_daemon_admits_the_session_or_stops_answering(is_admitted: bool) -> None:
    session = asking()
    session.handle_message(EMPTY_HEADER, Refused("memory", "later", 0.5), 10.0)
    session.handle_opened(Cursor(), 10.5)
    assert session.refusal == "later"
    if is_admitted:
        session.handle_message(HERE, welcome(6), 11.0)
    else:
        session.handle_deadline(10.5 + ANSWER_TIMEOUT_S)
    assert session.refusal is None


def test_a_refusal_while_active_is_a_stale_frame() -> None:
    session = active()

    assert session.handle_message(FrameHeader(BOOT, 0, 0), Refused("memory", "no"), 1.0) == []
    assert session.state == "active"
    assert session.stale_frames == 1


# --- losing and coming back


def test_an_unanswered_subscription_is_given_up_and_retried() -> None:
    session = asking()
    due_s = session.next_deadline_s()
    assert due_s is not None

    assert session.handle_deadline(due_s) == []

    assert session.state == "away"
    assert session.next_deadline_s() == due_s + BACKOFF_MIN_S


def test_a_batch_resets_the_doubling_reconnect_pause_and_a_welcome_does_not() -> None:
    session = ClientSession(WISH)
    pauses = []
    for attempt in range(8):
        session.handle_opened(Cursor(), 100.0 * attempt)
        session.handle_lost(100.0 * attempt)
        pauses.append((session.next_deadline_s() or 0.0) - 100.0 * attempt)

    assert pauses == pytest.approx([min(BACKOFF_MIN_S * 2**power, BACKOFF_MAX_S) for power in range(8)])
    session.handle_opened(Cursor(), 0.0)
    session.handle_message(HERE, welcome(), 0.0)
    session.handle_lost(0.0)
    assert session.next_deadline_s() == BACKOFF_MAX_S
    session.handle_opened(Cursor(), 0.0)
    session.handle_message(HERE, welcome(), 0.0)
    deliver(session, 0, 0, 0)
    session.handle_lost(0.0)
    assert session.next_deadline_s() == BACKOFF_MIN_S


def test_a_lost_connection_reported_twice_counts_once() -> None:
    session = active()
    session.handle_lost(10.0)

    assert session.handle_lost(10.01) == []
    assert session.next_deadline_s() == 10.0 + BACKOFF_MIN_S


def test_after_a_loss_it_resumes_with_the_order_it_knows_at_the_loops_own_cursor() -> None:
    session = active()
    deliver(session, 0, 0, 0)
    session.handle_lost(1.0)

    said = get_subscribe(session.handle_opened(Cursor(0, (Segment(0, 1, 0, 1),)), 2.0))
    assert said.resuming
    assert said.order_id == "order"
    assert said.cursor.next_base_index == 1


def test_a_new_connection_counts_deliveries_from_zero_at_the_cursor() -> None:
    session = active()
    for index in range(3):
        deliver(session, index, 0, index)
    session.handle_lost(1.0)
    session.handle_opened(Cursor(0, (Segment(0, 2, 0, 1),)), 2.0)
    session.handle_message(FrameHeader(BOOT + 1, NUMBER, 0), welcome(), 2.0)

    offered = session.handle_message(FrameHeader(BOOT + 1, NUMBER, 0), ready(0, 2), 2.0)

    assert offered == [ready(0, 2)]
    assert session.reconnects == 1


def test_a_stream_with_another_layout_is_left_and_the_error_names_what_differs() -> None:
    session = lost()
    other = replace(SPEC, images={"image": ImageSpec(16, 8, 3)}, normalize="unit", pixel_id=PixelId("other"))

    goodbye, *fail = session.handle_message(HERE, welcome(spec=other), 2.0)

    assert goodbye == SendMessage(HERE, Goodbye())
    assert type(failure(fail)) is StreamChangedError
    assert "stream 'train' changed in images, normalize; subscribe again" in str(failure(fail))
    assert session.state == "over"


def test_other_pixels_alone_are_accepted_and_kept() -> None:
    session = lost()
    other = replace(SPEC, pixel_id=PixelId("other"))

    assert session.handle_message(HERE, welcome(spec=other), 2.0)[0] == welcome(spec=other)
    assert session.spec == other


def test_a_session_with_a_known_spec_refuses_a_daemon_that_serves_another_order() -> None:
    saved = replace(SPEC, order_id=OrderId("saved"))
    session = ClientSession(WISH, saved)
    said = get_subscribe(session.handle_opened(Cursor(), 0.0))
    assert (said.order_id, said.order) == ("saved", saved.order_facts)
    assert type(failure(session.handle_message(HERE, welcome(), 0.0)[1:])) is StreamChangedError


@pytest.mark.parametrize("header", [FrameHeader(BOOT + 1, NUMBER, 0), FrameHeader(BOOT, NUMBER + 1, 0), EMPTY_HEADER])
def test_frames_of_another_boot_or_session_are_dropped_and_counted(header: FrameHeader) -> None:
    session = active()

    assert session.handle_message(header, ready(0, 0), 1.0) == []
    assert session.handle_message(header, Stopped("old news", changed=False), 1.0) == []
    assert session.stale_frames == 2
    assert session.state == "active"
    assert deliver(session, 0, 0, 0) == [ready(0, 0)]


def test_frames_that_arrive_while_away_or_before_the_welcome_are_dropped() -> None:
    lost = active()
    lost.handle_lost(1.0)
    fresh = asking()

    assert deliver(lost, 0, 0, 0) == deliver(fresh, 0, 0, 0) == []
    assert (lost.stale_frames, fresh.stale_frames) == (1, 1)


def test_the_client_leaves_a_draining_daemon_and_reconnects() -> None:
    session = active()

    assert session.handle_message(HERE, Draining(), 4.0) == []
    assert session.state == "away"
    assert session.next_deadline_s() == 4.0 + BACKOFF_MIN_S


# --- receipts, slots, ends


def test_a_due_receipt_is_delivered_and_its_comparison_reported() -> None:
    session = active()

    assert session.handle_message(HERE, ReceiptDue(0, "ab", 0), 1.0) == [ReceiptDue(0, "ab", 0)]
    timing = EpochTiming(0, 43.0, 2.0, "none", BatchSupply())
    assert session.report_receipt_check(0, "ab", ok=True, timing=timing) == [
        SendMessage(HERE, ReceiptSeen(0, "ab", True, timing))
    ]


def test_freed_slots_are_unmapped() -> None:
    assert active().handle_message(HERE, SlotsGone((4, 5)), 1.0) == [SlotsGone((4, 5))]


def test_messages_for_no_subscription_are_ignored() -> None:
    session = active()

    assert session.handle_message(HERE, Streams({}), 1.0) == []
    assert session.state == "active"


@pytest.mark.parametrize(("changed", "error"), [(False, StreamStoppedError), (True, StreamChangedError)])
def test_a_stopped_stream_ends_the_session_with_the_reason(changed: bool, error: type[Exception]) -> None:
    session = active()

    raised = failure(session.handle_message(HERE, Stopped("the disk is gone", changed), 1.0))

    assert type(raised) is error
    assert str(raised) == "the disk is gone"
    assert session.state == "over"


def test_closing_says_goodbye_once() -> None:
    session = active()

    assert session.close_session() == [SendMessage(HERE, Goodbye())]
    assert session.close_session() == []
    assert session.next_deadline_s() is None


def test_a_session_that_is_over_stays_over() -> None:
    session = active()
    session.close_session()

    assert session.handle_lost(1.0) == session.handle_deadline(1.0) == deliver(session, 0, 0, 0) == []
    assert session.handle_released_leases([0], 1, 0, 1.0) == []
    assert session.state == "over"
    assert session.next_deadline_s() is None


def test_a_session_waits_for_other_trainers_until_its_first_batch_and_never_again() -> None:
    session = asking(structs.replace(WISH, together=3))
    assert session.describe_daemon_wait() == ""
    session.handle_message(HERE, welcome(), 0.0)
    assert session.describe_daemon_wait() == "3 trainers of stream 'train'"
    session.handle_lost(1.0)
    assert get_subscribe(session.handle_opened(Cursor(), 2.0)).together == 3
    session.handle_message(HERE, welcome(), 2.0)
    deliver(session, 0, 0, 0)
    assert session.describe_daemon_wait() == ""
    session.handle_lost(3.0)
    for cursor in (Cursor().after_step(0, 1), Cursor().after_step(0, 1)):
        assert get_subscribe(session.handle_opened(cursor, 4.0)).together == 0


# --- batches


def test_batches_in_order_are_delivered_across_the_end_of_an_epoch() -> None:
    session = active()
    steps = [(epoch, index) for epoch in range(2) for index in range(5)]

    for number, (epoch, index) in enumerate(steps):
        assert deliver(session, number, epoch, index) == [ready(epoch, index)]
    assert session.gaps == 0


def test_a_rank_expects_its_own_batches() -> None:
    session = active(structs.replace(WISH, rank=1, world=2))

    assert deliver(session, 0, 0, 1) == [ready(0, 1)]
    assert deliver(session, 1, 0, 3) == [ready(0, 3)]
    assert deliver(session, 2, 1, 1) == [ready(1, 1)]


@pytest.mark.parametrize(
    ("base", "first"), [(0, (0, 0)), (1, (0, 1)), (4, (0, 4)), (5, (1, 0))], ids=["0", "1", "N-1", "N"]
)
def test_the_first_batch_follows_the_cursor(base: int, first: tuple[int, int]) -> None:
    session = active(cursor=Cursor(0, (Segment(0, base, 0, 1),) if base else ()))

    assert deliver(session, 0, *first) == [ready(*first)]


@pytest.mark.parametrize(
    ("number", "epoch", "index"),
    [(3, 0, 3), (2, 0, 3), (1, 0, 1), (2, 0, 1), (3, 0, 2), (2, 1, 2), (0, 0, 0), (2, 0, 0)],
    ids=["gap", "skipped", "again", "repeated", "misnumbered", "wrong epoch", "restarted", "out of order"],
)
def test_a_batch_out_of_order_is_never_delivered_and_ends_the_connection(number: int, epoch: int, index: int) -> None:
    session = active()
    deliver(session, 0, 0, 0)
    deliver(session, 1, 0, 1)
    assert repr(session) == "<ClientSession of 'train', active, 2 of 8 batches received>"

    assert deliver(session, number, epoch, index) == []
    assert repr(session) == "<ClientSession of 'train', away>"
    assert session.gaps == 1
    assert session.next_deadline_s() == 1.0 + BACKOFF_MIN_S
    assert deliver(session, 2, 0, 2) == [], "not even the right one, once the connection is given up"


def test_a_batch_beyond_the_last_epoch_is_not_delivered() -> None:
    session = active(structs.replace(WISH, epochs=1))
    for index in range(5):
        deliver(session, index, 0, index)

    assert deliver(session, 5, 1, 0) == []
    assert session.gaps == 1


# --- progress


@pytest.mark.parametrize(
    ("credit", "order", "reports"),
    [
        (2, (0, 1), [Progress(3, (0,), 1, 10), Progress(4, (1,), 2, 20)]),
        (4, (0, 1, 2, 3), [Progress(6, (0, 1), 2, 30), Progress(8, (2, 3), 4, 70)]),
        (4, (2, 0, 3, 1), [Progress(6, (2, 0), 2, 30), Progress(8, (3, 1), 4, 70)]),
    ],
)
def test_releases_are_reported_when_half_of_the_credit_is_free(
    credit: int, order: tuple[int, ...], reports: list[Progress]
) -> None:
    session = active(credit=credit)
    said = [session.handle_released_leases([number], taken, 10 * taken, 1.0) for taken, number in enumerate(order, 1)]
    assert [progress for actions in said for progress in told(actions)] == reports


def test_few_releases_are_reported_after_a_short_delay_from_the_first() -> None:
    session = active(credit=100)
    session.handle_released_leases([0], 1, 1, 1.0)
    session.handle_released_leases([1], 2, 1, 1.01)

    assert session.next_deadline_s() == 1.0 + PROGRESS_DELAY_S
    assert session.handle_deadline(1.0 + PROGRESS_DELAY_S) == [SendMessage(HERE, Progress(102, (0, 1), 2, 2))]
    assert session.next_deadline_s() is None


def test_a_new_connection_resets_progress_but_keeps_the_time_waited() -> None:
    session = active(credit=4)
    session.handle_released_leases([0], 1, 50, 1.0)
    session.handle_lost(1.0)
    session.handle_opened(Cursor(), 2.0)
    session.handle_message(HERE, welcome(4), 2.0)

    assert told(session.handle_released_leases([0, 1], 2, 5, 3.0)) == [Progress(6, (0, 1), 2, 55)]


def test_nothing_is_sent_to_a_daemon_that_is_away() -> None:
    session = active()
    session.handle_lost(1.0)

    assert session.handle_released_leases([0, 1, 2], 3, 0, 1.0) == []
    assert session.report_receipt_check(0, "digest", ok=True) == []
    assert session.close_session() == []


def get_subscribe(what: list[ClientAction]) -> Subscribe:
    (say,) = what
    assert isinstance(say, SendMessage)
    assert isinstance(say.message, Subscribe)
    return say.message


def test_a_daemon_that_is_not_there_is_looked_for_at_the_shortest_interval() -> None:
    session = ClientSession(WISH, SPEC)
    for now_s in (1.0, 2.0, 3.0):
        session.handle_unreachable(None, now_s)
        assert session.next_deadline_s() == now_s + BACKOFF_MIN_S
    assert (session.state, session.refusal) == ("away", None)


def test_a_door_that_sends_the_client_away_is_asked_less_and_less_often() -> None:
    session, waits_s = ClientSession(WISH, SPEC), []
    for _ in range(8):
        session.handle_unreachable("no room", 1.0)
        waits_s.append((session.next_deadline_s() or 0.0) - 1.0)
    assert session.refusal == "no room"
    assert waits_s[:3] == pytest.approx([BACKOFF_MIN_S, 2 * BACKOFF_MIN_S, 4 * BACKOFF_MIN_S])
    assert waits_s[-1] == pytest.approx(BACKOFF_MAX_S)


def test_an_ended_session_does_not_look_for_a_daemon() -> None:
    session = ClientSession(WISH, SPEC)
    session.close_session()
    session.handle_unreachable("no room", 1.0)
    assert (session.state, session.refusal, session.next_deadline_s()) == ("over", None, None)
