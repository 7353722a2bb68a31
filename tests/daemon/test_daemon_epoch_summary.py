"""Each epoch of a stream has one summary, when its last trainer has finished or left it."""

from __future__ import annotations

import numpy as np
import pytest
from support.sample_specs import SPEC

from streamd.core.epoch_timing import BOTTLENECK_ADVICE, BatchSupply, EpochBottleneck, EpochTiming
from streamd.core.sampler import build_all_good_row_status
from streamd.core.spec import BatchKey, Cursor, Segment
from streamd.daemon.epoch_summary import EpochSummary, EpochTracker
from streamd.limits import MAX_OPEN_EPOCHS

NONE_BAD = build_all_good_row_status(10)  # SPEC: 103 samples, 11 batches of 10


def timing(seconds: float, waited_s: float = 0.0, verdict: EpochBottleneck = "none", epoch: int = 0) -> EpochTiming:
    return EpochTiming(epoch, seconds, waited_s, verdict, BatchSupply())


class Daemon:
    """Epochs, told of whole epochs at a time."""

    def __init__(self) -> None:
        self.epochs = EpochTracker()
        self._unsent: set[BatchKey] = set()

    def decode(self, epoch: int = 0, *, times: int = 1) -> None:
        for _ in range(times):
            for index in range(SPEC.batches):
                self.epochs.on_batch_produced(BatchKey("train", epoch, index), NONE_BAD)
                self._unsent.add(BatchKey("train", epoch, index))

    def send(self, session: int, *, epoch: int = 0, first: int = 0, rank: int = 0, now_s: float = 0.0) -> None:
        """A session's batches of an epoch, from the first on; it came two seconds before."""
        self.epochs.on_session_began(session, now_s - 2.0)
        for index in range(first, SPEC.batches):
            key = BatchKey("train", epoch, index)
            self.epochs.on_batch_sent(session, rank, key, now_s, is_first=key in self._unsent)
            self._unsent.discard(key)

    def end(
        self, session: int, *, epoch: int = 0, timing: EpochTiming | None = None, world: int = 1, now_s: float = 100.0
    ) -> list[EpochSummary]:
        """It was sent all of the epoch, and says that it has had it."""
        cursor = Cursor(epoch, (Segment(0, SPEC.batches // world, 0, world),))
        self.epochs.on_epoch_sent(session, SPEC, cursor)
        return self.epochs.confirm_epoch_received(session, epoch, timing, now_s)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def test_the_summary_of_one_trainers_epoch_has_all_figures(daemon: Daemon) -> None:
    daemon.decode()
    daemon.send(1)
    marks = np.array([1, 1, 2, *[0] * 7], np.uint8)
    for _ in range(2):  # made twice, and its bad rows are the same three
        daemon.epochs.on_batch_produced(BatchKey("train", 0, 4), marks)
    assert daemon.end(1, timing=timing(20.6, 10.3, "decode")) == [
        EpochSummary("train", 0, 1, 103, 20.6, 103 / 20.6, 1.0, 3, "decode")
    ]


def test_a_batch_decoded_again_before_it_was_sent_counts_once(daemon: Daemon) -> None:
    daemon.decode(times=2)
    daemon.send(1)
    daemon.decode()
    assert [each.decodes_per_batch for each in daemon.end(1)] == [1.0]


def test_trainers_in_step_share_one_summary_when_the_last_is_done(daemon: Daemon) -> None:
    daemon.decode()
    for session in (1, 2, 3):
        daemon.send(session)
    assert daemon.end(1, timing=timing(10.0, 1.0, "disk")) == []
    assert daemon.end(2, timing=timing(30.0, 15.0, "decode")) == []
    (finished,) = daemon.end(3, timing=timing(20.0))
    assert (finished.trainers, finished.samples, finished.seconds) == (3, 103, 30.0)
    assert finished.decodes_per_batch == 1.0
    assert finished.verdict == "decode", "of the one that waited most"
    assert finished.text.endswith(f"that read this epoch have finished it; {BOTTLENECK_ADVICE['decode'].sentence}")


def test_ranks_share_one_summary_and_samples_count_once(daemon: Daemon) -> None:
    daemon.decode()
    for rank in (0, 1):
        daemon.send(rank, first=rank, rank=rank)
    daemon.end(0, world=2)
    (finished,) = daemon.end(1, world=2)
    assert (finished.trainers, finished.samples) == (2, 100), "the eleventh batch is nobody's"
    assert finished.decodes_per_batch == 1.1


def test_a_trainer_in_the_next_epoch_is_no_longer_in_the_last_one(daemon: Daemon) -> None:
    for session in (1, 2):
        daemon.send(session)
    daemon.send(1, epoch=1)
    assert daemon.end(1) == []
    assert [each.epoch for each in daemon.end(2)] == [0]
    daemon.send(2, epoch=1)
    assert daemon.end(2, epoch=1) == []
    assert [(each.epoch, each.trainers) for each in daemon.end(1, epoch=1)] == [(1, 2)]


def test_a_trainer_that_leaves_early_is_not_waited_for_and_not_counted(daemon: Daemon) -> None:
    for session in (1, 2):
        daemon.send(session)
    assert daemon.end(1) == []
    (finished,) = daemon.epochs.remove_session(2)
    assert finished.trainers == 1


def test_an_epoch_that_no_trainer_finished_has_no_summary(daemon: Daemon) -> None:
    daemon.send(1)
    assert daemon.epochs.remove_session(1) == []
    assert daemon.epochs.remove_session(1) == []


def test_a_later_trainer_gets_a_summary_of_its_own(daemon: Daemon) -> None:
    daemon.decode()
    daemon.send(1)
    assert [each.decodes_per_batch for each in daemon.end(1)] == [1.0]
    daemon.decode()
    daemon.send(2)
    assert [each.decodes_per_batch for each in daemon.end(2)] == [1.0]


def test_a_trainer_that_starts_inside_an_epoch_counts_only_its_samples(daemon: Daemon) -> None:
    daemon.send(1, first=8)
    (finished,) = daemon.end(1)
    assert finished.samples == 23


@pytest.mark.parametrize(
    ("reported_s", "seconds"),
    [(float("nan"), 60.0), (float("inf"), 60.0), (-1.0, 60.0), (0.0, 60.0), (62.1, 60.0), (61.9, 61.9)],
)
def test_a_reported_time_is_used_unless_it_is_impossible(daemon: Daemon, reported_s: float, seconds: float) -> None:
    daemon.send(1, now_s=40.0)  # subscribed at 38 s
    (finished,) = daemon.end(1, timing=timing(reported_s, float("nan"), "disk"), now_s=100.0)
    assert (finished.seconds, finished.verdict) == (seconds, "disk")


def test_without_a_reported_time_the_daemons_is_used_and_there_is_no_bottleneck(daemon: Daemon) -> None:
    daemon.send(1, now_s=40.0)
    (finished,) = daemon.end(1, now_s=100.0)
    assert (finished.seconds, finished.samples_per_s, finished.verdict) == (60.0, 103 / 60, None)


def test_only_a_session_that_was_sent_the_whole_epoch_ends_it(daemon: Daemon) -> None:
    daemon.send(1)
    assert daemon.epochs.confirm_epoch_received(1, 0, timing(1.0), 2.0) == [], "it was not sent the last batch"
    assert daemon.epochs.confirm_epoch_received(2, 0, timing(1.0), 2.0) == []
    assert daemon.epochs.confirm_epoch_received(1, 7, timing(1.0), 2.0) == []
    assert len(daemon.end(1)) == 1
    assert daemon.end(1) == [], "it says so twice"


def test_bad_rows_of_later_epochs_are_forgotten_with_the_last_trainer(daemon: Daemon) -> None:
    daemon.send(1, epoch=1)
    daemon.epochs.on_batch_produced(BatchKey("train", 2, 0), np.ones(1, np.uint8))
    daemon.epochs.remove_session(1)
    daemon.send(2, epoch=2)
    (finished,) = daemon.end(2, epoch=2)
    assert finished.bad == 0


def test_epochs_without_trainers_are_kept_in_bounded_number(daemon: Daemon) -> None:
    for epoch in range(10_000):
        daemon.epochs.on_batch_produced(BatchKey("train", epoch, 0), np.ones(1, np.uint8))
    daemon.send(1, epoch=9_999)
    assert [each.bad for each in daemon.end(1, epoch=9_999)] == [1]
    assert len(daemon.epochs._decodes_ahead) < 300


def test_a_trainer_that_confirms_nothing_stays_in_a_bounded_number_of_epochs(daemon: Daemon) -> None:
    for epoch in range(MAX_OPEN_EPOCHS + 10):
        daemon.epochs.on_session_began(1, 0.0)
        daemon.epochs.on_batch_sent(1, 0, BatchKey("train", epoch, 0), 0.0, is_first=True)
    assert len(daemon.epochs._open_epochs) == MAX_OPEN_EPOCHS
    assert daemon.epochs.remove_session(1) == []
    assert not daemon.epochs._open_epochs
