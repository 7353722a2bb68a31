"""The status of a daemon over a real scheduler and made-up deliveries, and its answers to queries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.dispatcher_rig import dispatching
from support.opened_streams import Serve

from streamd.core.counters import ProcessStats
from streamd.core.epoch_timing import BatchSupply, EpochTiming
from streamd.core.spec import BatchKey, Cursor
from streamd.core.status import COUNTED_SPAN_S, RESTING_S, DaemonStatus, SessionStatus
from streamd.daemon.engine.batch_job import BatchJob
from streamd.daemon.status_builder import StatusBuilder, SubscribedTrainer
from streamd.daemon.streams.served_stream import ServedStream
from streamd.daemon.streams.shuffle_score import MixingScore
from streamd.ipc.messages import (
    AskMonitor,
    AskNames,
    AskStats,
    AskStatus,
    AskStreams,
    MonitorAt,
    Names,
    Refused,
    Stats,
    StatusNow,
    Streams,
)
from streamd.limits import MAX_SLOTS
from streamd.scheduler.admission import SchedulerLimits
from streamd.scheduler.events import CreditGranted, ProgressReported, Subscribed, TimePassed
from streamd.scheduler.scheduler import Scheduler

MIB = 1 << 20


class StatusRig:
    """A status builder over a scheduler, and the events that a service would report."""

    def __init__(self, stream: ServedStream) -> None:
        self.stream, self.stats = stream, ProcessStats()
        self.scheduler = Scheduler([stream.stream_shape], SchedulerLimits(64 * MIB, workers=2))
        self.builder = StatusBuilder({"train": stream}, 2, 64 * MIB, "ipc:///s", self.stats, began_s=0.0)

    def subscribe(
        self,
        number: int,
        now_s: float = 0.0,
        *,
        rank: int = 0,
        world: int = 1,
        epoch: int = 0,
        together: int = 0,
        grant: int = 0,
        trainer: SubscribedTrainer = SubscribedTrainer(),  # noqa: B008 - frozen
    ) -> None:
        wish = Subscribed(number, "train", rank, world, "drop", 3, Cursor(epoch), 4, resuming=False, together=together)
        self.scheduler.handle_events((wish, CreditGranted(number, grant)), now_s)
        self.builder.on_session_began(number, ("train", rank, world), now_s, trainer)

    def send(self, number: int, batches: int, now_s: float, *, shared: bool = False, epoch: int = 0) -> None:
        """Sends batches of 8 to a session; `shared` ones were sent to another session before."""
        self.builder.on_batches_sent(number, [(epoch, 8)] * batches, now_s, first_sent=0 if shared else batches)

    def decode(self, batches: int, now_s: float, *, busy_s: float = 0.0) -> None:
        for index in range(batches):
            job = BatchJob(BatchKey("train", 0, index % self.stream.spec.batches), self.stream, 0, 1, 4096)
            job.busy_s = busy_s
            self.builder.on_batch_produced(job, now_s)

    def decodes_per_batch(self, now_s: float) -> float | None:
        self.builder.on_epoch_received(max((0, *self.builder._sessions)), -1, None, now_s)  # else it is not known yet
        return self.status(now_s).streams[0].decodes_per_batch

    def status(self, now_s: float = 1.0, *, is_draining: bool = False) -> DaemonStatus:
        return self.builder.build_status(self.scheduler, now_s, slots=3, is_draining=is_draining)

    def session(self, number: int, now_s: float) -> SessionStatus:
        return next(session for session in self.status(now_s).sessions if session.session == number)


@pytest.fixture
def rig(serve_images: Serve) -> StatusRig:
    return StatusRig(serve_images({"cat": 80}))


def test_without_trainers_decodes_per_batch_is_unknown(rig: StatusRig) -> None:
    assert rig.decodes_per_batch(1.0) is None


def test_trainers_in_step_share_decodes_and_trainers_apart_do_not(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.subscribe(2)
    rig.send(1, 10, 5.0)
    rig.send(2, 10, 5.0, shared=True)
    assert rig.decodes_per_batch(6.0) == 1.0
    rig.send(1, 10, 26.0)
    rig.send(2, 10, 26.0)
    assert rig.decodes_per_batch(27.0) == 2.0


def test_batches_decoded_ahead_of_a_single_trainer_do_not_count(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.decode(50, 5.0)
    rig.send(1, 10, 5.0)
    assert rig.decodes_per_batch(6.0) == 1.0


def test_decodes_per_batch_is_known_after_an_epoch_and_explained_before(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.send(1, 10, 5.0)
    (early,) = rig.status(6.0).streams
    rig.builder.on_epoch_received(1, 0, None, 6.0)
    (told,) = rig.status(6.0).streams
    (late,) = rig.status(60.0).streams
    assert (early.decodes_per_batch, told.decodes_per_batch, late.decodes_per_batch) == (None, 1.0, None)
    assert [each.decodes_unknown for each in (early, told, late)] == [
        "known once a trainer has read an epoch",
        None,
        "no trainer has received a batch lately",
    ]


@pytest.mark.parametrize(("epoch", "rank", "apart"), [(1, 0, True), (0, 0, False), (1, 1, False)])
def test_only_trainers_of_one_rank_that_are_apart_get_a_remedy(
    rig: StatusRig, epoch: int, rank: int, *, apart: bool
) -> None:
    rig.subscribe(1, world=2)
    rig.subscribe(2, rank=rank, world=2, epoch=epoch)
    rig.send(1, 10, 5.0)
    rig.send(2, 10, 5.0)
    (stream,) = rig.status(6.0).streams
    assert (stream.remedy is not None) == apart


def test_decodes_per_batch_covers_the_last_seconds(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.subscribe(2)
    for number in (1, 2):
        rig.send(number, 25, 1.0)
    rig.send(1, 10, 40.0)
    assert rig.decodes_per_batch(41.0) == 1.0


def test_a_trainer_of_an_empty_stream_starts_a_new_count(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.send(1, 10, 1.0)
    rig.builder.on_session_ended(1, 2.0)
    rig.subscribe(2, 2.0)
    rig.send(2, 5, 3.0)
    assert rig.decodes_per_batch(3.0) == 1.0


def test_decodes_of_an_ended_trainer_do_not_count_against_the_others(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.send(1, 100, 1.0)
    for number in (2, 3):
        rig.subscribe(number, 5.0)
        rig.send(number, 5, 6.0, shared=True)
    rig.send(1, 5, 6.0)
    assert rig.decodes_per_batch(6.0) == 1.0
    for number in (1, 2, 3):
        rig.builder.on_session_ended(number, 7.0)
        assert rig.decodes_per_batch(7.0) == 1.0
    assert rig.decodes_per_batch(100.0) is None


def test_a_rank_that_reconnects_continues_its_count(rig: StatusRig) -> None:
    for rank in (0, 1):
        rig.subscribe(1 + rank, rank=rank, world=2)
        rig.send(1 + rank, 10, 5.0)
    assert rig.decodes_per_batch(6.0) == 1.0, "each rank needs batches of its own"
    rig.builder.on_session_ended(1, 6.0)
    assert rig.decodes_per_batch(6.0) == 1.0
    rig.subscribe(3, 7.0, rank=0, world=2)
    assert rig.decodes_per_batch(7.0) == 1.0


def test_a_session_shows_its_state_and_position(rig: StatusRig) -> None:
    rig.subscribe(1, grant=4)
    rig.subscribe(2)
    rig.subscribe(3, together=9)
    rig.send(2, 1, 1.0)
    assert rig.session(1, 1.5).doing == "waiting"
    assert rig.session(2, 1.5).doing == "reading"
    assert rig.session(2, 1.5 + RESTING_S).doing == "resting"
    assert rig.session(3, 1.5).doing == "gathering"
    rig.scheduler.handle_events((ProgressReported(1, 1),), 2.0)
    assert (rig.session(1, 2.0).step, rig.session(1, 2.0).steps, rig.session(1, 2.0).epochs) == (0, 10, 3)


def test_rates_count_taken_batches_and_age_counts_from_subscribing(rig: StatusRig) -> None:
    rig.subscribe(1, 100.0)
    rig.send(1, 10, 105.0)
    assert rig.session(1, 110.0).samples_per_s == 0.0
    rig.builder.on_progress(1, 7, 0.0, 105.0)
    status = rig.status(109.5)
    assert status.sessions[0].samples_per_s == pytest.approx(7 * 8 / status.window_s)
    assert status.streams[0].samples_per_s == status.sessions[0].samples_per_s
    assert status.sessions[0].age_s == 9.5
    rig.builder.on_session_ended(1, 109.5)
    status = rig.status(109.5)
    assert status.streams[0].samples_per_s > 0, "it took them, though it is gone"


def test_a_session_shows_taken_batches_and_the_trainers_own_steps(rig: StatusRig) -> None:
    rig.subscribe(1, trainer=SubscribedTrainer("lr-0.01", 77, 4, 20), grant=4)
    session = rig.scheduler.sessions[0]
    for slot in range(4):
        session.lease_next_batch(slot)
    rig.send(1, 4, 1.0)
    rig.builder.on_progress(1, 3, 0.0, 2.0)
    told = rig.session(1, 2.0)
    assert (told.name, told.pid, told.batch_size) == ("lr-0.01", 77, 4)
    assert (told.epoch, told.step, told.steps, told.in_flight) == (0, 3, 10, 1)
    assert (told.own_step, told.own_steps) == (6, 20)


def test_batches_beyond_those_a_session_can_hold_count_as_taken(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.send(1, MAX_SLOTS + 5, 0.5)
    assert len(rig.builder._sessions[1].untaken) == MAX_SLOTS
    assert rig.stats.values_by_group()["stream.train"]["taken_samples"] == 5 * 8


def test_a_received_epoch_counts_as_taken_to_its_end(rig: StatusRig) -> None:
    rig.subscribe(1, grant=10)
    session = rig.scheduler.sessions[0]
    for slot in range(10):
        session.lease_next_batch(slot)
    session.finish_epoch()
    rig.send(1, 10, 1.0)
    assert (rig.session(1, 1.0).epoch, rig.session(1, 1.0).step) == (0, 0)
    rig.builder.on_epoch_received(1, 0, None, 2.0)
    assert (rig.session(1, 2.0).epoch, rig.session(1, 2.0).step, rig.session(1, 2.0).in_flight) == (1, 0, 0)


def test_the_pid_from_the_kernel_replaces_the_reported_one(rig: StatusRig) -> None:
    rig.subscribe(1, trainer=SubscribedTrainer("", 1))
    rig.builder.set_process(1, 0)  # of another namespace
    assert rig.session(1, 1.0).pid == 1
    rig.builder.set_process(1, 4711)
    assert rig.session(1, 1.0).pid == 4711


def test_no_share_is_above_one(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.send(1, 1, 100.0)
    rig.decode(10, 100.0, busy_s=1000.0)
    rig.builder.on_progress(1, 1, 1000.0, 100.0)
    rig.scheduler.slot_wait_s = 1000.0
    status = rig.status(101.0)
    assert (status.busy_fraction, status.slot_wait_fraction, status.waiting_trainers) == (1.0, 1.0, 1.0)
    assert status.reading_fraction + status.decoding_fraction <= 1.0


def test_an_epoch_timing_belongs_to_its_session_and_is_ignored_after_its_end(rig: StatusRig) -> None:
    timing = EpochTiming(0, 43.0, 2.0, "none", BatchSupply())
    rig.subscribe(1)
    rig.subscribe(2)
    rig.builder.on_epoch_received(2, 0, timing, 1.0)
    rig.builder.on_epoch_received(3, 0, timing, 1.0)
    rig.builder.on_epoch_received(2, 1, None, 1.0)  # says nothing of its time
    assert [rig.session(number, 1.0).last_epoch for number in (1, 2)] == [None, timing]


def test_workers_are_busy_as_long_as_they_read_and_decode(rig: StatusRig) -> None:
    rig.decode(10, 100.0, busy_s=COUNTED_SPAN_S / 10)
    assert rig.status(100.999).busy_fraction == pytest.approx(0.5, 0.01)


def take(rig: StatusRig, number: int, batches: int, now_s: float) -> None:
    """Has a session lease batches, and take them all."""
    session = next(each for each in rig.scheduler.sessions if each.id == number)
    for slot in range(batches):
        session.lease_next_batch(slot)
    rig.send(number, batches, now_s)
    rig.builder.on_progress(number, batches, 0.0, now_s)


def test_a_trainer_shows_its_lag_its_cohort_and_the_time_left_at_its_rate(rig: StatusRig) -> None:
    rig.subscribe(1, grant=4)
    rig.subscribe(2, grant=4)
    take(rig, 1, 4, 99.5)
    take(rig, 2, 1, 99.5)
    status = rig.status(100.0)
    first, second = status.sessions
    assert (first.lag_steps, second.lag_steps) == (0, 3)
    assert (first.cohort, second.cohort, status.streams[0].cohorts) == (0, 0, 1)
    assert first.left_s == pytest.approx((10 - 4) * 8 / first.samples_per_s)


def test_the_rate_of_a_trainer_younger_than_the_window_covers_its_age(rig: StatusRig) -> None:
    rig.subscribe(1, 98.0, grant=4)
    take(rig, 1, 4, 99.5)
    assert rig.session(1, 100.0).left_s == pytest.approx((10 - 4) * 8 / (4 * 8 / 2.0))


def test_an_idle_or_finished_trainer_has_no_time_left(rig: StatusRig) -> None:
    rig.subscribe(1, grant=4)
    assert rig.session(1, 1.0).left_s is None
    take(rig, 1, 4, 99.5)
    rig.scheduler.sessions[0].finished = True
    told = rig.session(1, 100.0)
    assert (told.doing, told.left_s, told.lag_steps, told.cohort) == ("finished", None, None, None)


def test_the_bottleneck_is_that_of_the_status_window(rig: StatusRig) -> None:
    assert rig.status(1.0).bottleneck == "nobody"
    rig.subscribe(1, grant=4)
    assert rig.status(1.0).bottleneck == "pending"
    take(rig, 1, 4, 99.5)
    rig.decode(10, 99.5, busy_s=2.0)
    rig.builder.on_progress(1, 4, 8.0, 99.5)
    told = rig.status(100.0)
    assert (told.bottleneck, told.slots) == ("decode", 3)


def test_receipts_and_bad_samples_are_counted(rig: StatusRig) -> None:
    rig.stats.add_count("stream.train", "receipts_ok", 3)
    rig.stats.add_count("stream.train", "receipts_bad")
    status = rig.status(1.0, is_draining=True)
    assert (status.streams[0].receipts_ok, status.streams[0].receipts_bad, status.streams[0].bad) == (3, 1, 0)
    assert len(status.all_troubles) == 2


def test_a_stopped_stream_shows_the_reason(rig: StatusRig) -> None:
    (sound,) = rig.status().streams
    assert sound.stopped is None
    rig.stream.quarantine.reasons.update(dict.fromkeys(range(11), "no image"))
    (trouble,) = rig.status().all_troubles
    assert trouble.startswith("stream 'train' is stopped: 11 of 80 samples are bad")


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_failure_is_shown_until_the_stream_changes_or_a_trainer_subscribes(
    rig: StatusRig, *, is_changed: bool
) -> None:
    rig.builder.on_stream_failed("train", "the disk is away")
    assert rig.status().streams[0].failed == "the disk is away"
    if is_changed:
        rig.builder.on_stream_changed("train")
    else:
        rig.subscribe(1)
    assert rig.status().streams[0].failed is None
    assert rig.status().all_troubles == []


def test_worker_deaths_are_counted_in_total_and_over_half_a_minute(rig: StatusRig) -> None:
    for now_s in (0.0, 100.0, 101.0):
        rig.stats.add_count("engine", "worker_deaths")
        rig.builder.on_worker_died(now_s)
    status = rig.status(102.0)
    assert (status.worker_deaths, status.deaths_lately) == (3, 2)


def test_a_paused_stream_is_stopped_until_it_resumes_or_changes(rig: StatusRig) -> None:
    def stopped() -> str | None:
        return rig.status().streams[0].stopped

    rig.builder.set_stream_paused("train", "it waits")
    assert (stopped(), rig.builder.is_stream_paused("train")) == ("it waits", True)
    rig.builder.set_stream_paused("train", None)
    assert (stopped(), rig.builder.is_stream_paused("train")) == (None, False)
    rig.builder.set_stream_paused("train", "it waits")
    rig.builder.on_stream_changed("train")
    assert stopped() is None


def test_a_failed_reload_is_shown_until_one_succeeds(rig: StatusRig) -> None:
    for failed in (True, False):
        rig.builder.reload_failed = failed
        assert rig.status().reload_failed == failed


def test_the_shuffle_score_of_a_stream_is_shown_with_its_advice(rig: StatusRig) -> None:
    (plain,) = rig.status().streams
    assert (plain.shuffle_score, plain.poorly_mixed) == (None, None)  # of one class
    poor = replace(rig.stream, measure_mixing=lambda: MixingScore("label", 0.25, 0.01, "mix it"))
    rig.builder.streams = {"train": poor}
    (told,) = rig.status().streams
    assert (told.shuffle_score, told.poorly_mixed) == (0.25, "mix it")


def test_the_images_of_a_stream_are_told_by_name_shape_and_mode(rig: StatusRig) -> None:
    (told,) = rig.status().streams
    shapes = {name: image.shape for name, image in rig.stream.spec.images.items()}
    assert {image.name: image.shape for image in told.images} == shapes
    assert {(image.mode, image.dtype) for image in told.images} == {("RGB", "uint8")}


def test_a_changed_stream_starts_a_new_count(rig: StatusRig) -> None:
    rig.subscribe(1)
    rig.subscribe(2)
    for number in (1, 2):
        rig.send(number, 10, 1.0)
        rig.builder.on_session_ended(number, 2.0)
    rig.builder.on_stream_changed("train")
    assert rig.decodes_per_batch(2.0) is None
    rig.subscribe(3, 2.0)
    rig.send(3, 5, 3.0)
    assert rig.decodes_per_batch(3.0) == 1.0


def test_an_added_stream_is_shown_and_a_removed_one_is_not(rig: StatusRig) -> None:
    streams = dict(rig.builder.streams)
    rig.builder.streams = streams
    streams["other"] = replace(rig.stream, spec=replace(rig.stream.spec, name="other"))
    del streams["train"]
    rig.builder.on_stream_changed("other")
    rig.builder.on_stream_changed("train")
    rig.decode(1, 1.5)  # it was under way when its stream was taken away
    (told,) = rig.status(2.0).streams
    assert (told.name, told.sessions, told.decoded_per_s) == ("other", 0, 0.0)


# --- queries: the answers are of now, whatever has been reloaded since


async def test_a_query_for_streams_gets_those_served_now(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        assert rig.ask(b"asker", AskStreams()) == Streams({"train": stream.spec})
        rig.dispatcher.replace_stream_ending_sessions("train", None, "it was removed")
        assert rig.ask(b"asker", AskStreams()) == Streams({})


async def test_stats_are_read_at_the_time_of_the_query(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        for name in (b"one", b"two", b"three"):
            rig.subscribe(name)
        told = rig.ask(b"asker", AskStats())
        assert isinstance(told, Stats)
        slots, producing = len(rig.slots), rig.scheduler.producing_count
        assert told.values["daemon"] == {
            "sessions": 3, "memory_used_bytes": rig.scheduler.used_bytes, "slots": slots, "producing": producing,
            "slot_wait_s": rig.scheduler.slot_wait_s,
        }  # fmt: skip
        assert (slots > 0, producing > 0) == (True, True)


async def test_a_query_for_the_dashboard_gets_its_address_or_how_to_enable_it(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        none = rig.ask(b"asker", AskMonitor())
        assert isinstance(none, Refused)
        assert "`monitor: 127.0.0.1:9191`" in none.text
        there = rig.dispatcher._monitor = MonitorAt("http://127.0.0.1:9191", "secret")
        assert rig.ask(b"asker", AskMonitor()) == there


async def test_stats_count_the_checks_of_each_scheduler_rule(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        rig.scheduler.handle_events((TimePassed(),), 0.0)
        told = rig.ask(b"asker", AskStats())
        assert isinstance(told, Stats)
        assert told.values["rules"] == rig.scheduler.checks_by_rule
        assert told.values["rules"]["memory_within_budget"] == 1


async def test_the_status_shows_whether_the_daemon_is_draining(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        for draining in (False, True):
            if draining:
                rig.dispatcher.drain_sessions()
            told = rig.ask(b"asker", AskStatus())
            assert isinstance(told, StatusNow)
            assert told.status.draining == draining
            assert [each.name for each in told.status.streams] == ["train"]


async def test_names_are_returned_in_the_order_asked_or_refused(stream: ServedStream) -> None:
    async with dispatching(stream) as rig:
        assert rig.ask(b"asker", AskNames("train", (8, 0))) == Names(("dog/0004.jpg", "cat/0000.jpg"))
        assert isinstance(rig.ask(b"asker", AskNames("train", (9,))), Refused)
        assert isinstance(rig.ask(b"asker", AskNames("other", ())), Refused)
