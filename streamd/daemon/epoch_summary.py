"""Finds when an epoch of a stream is over for all its trainers, and summarizes it. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from streamd.core.epoch_timing import BOTTLENECK_ADVICE, EpochBottleneck, EpochTiming
from streamd.core.sampler import RowStatus
from streamd.core.spec import BatchKey, Cursor, StreamSpec
from streamd.limits import MAX_OPEN_EPOCHS

_MAX_EPOCHS_AHEAD: Final = 256  # epochs with batches and without trainers yet: one for each trainer

StreamEpoch = tuple[str, int]  # stream name, epoch


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """One epoch of a stream, summarized once for all its trainers.

    `samples` are those between the first and the last batch that its trainers read, each counted once; `bad` rows are
    among them. `seconds` is the time of the slowest trainer, from its first request to its last batch. `verdict` is the
    bottleneck of the trainer that waited the greatest part of its time, None if no trainer has reported one.
    """

    stream: str
    epoch: int
    trainers: int
    samples: int
    seconds: float
    samples_per_s: float
    decodes_per_batch: float
    bad: int
    verdict: EpochBottleneck | None

    @property
    def text(self) -> str:
        """The message that the epoch is over, with what limited it."""
        limit = f"; {BOTTLENECK_ADVICE[self.verdict].sentence}" if self.verdict else ""
        return f"all trainers that read this epoch have finished it{limit}"


@dataclass(slots=True)
class _EpochDecodes:
    decodes: int = 0
    bad_rows: dict[int, int] = field(default_factory=dict)  # of a batch, by its index, if it has any


@dataclass(frozen=True, slots=True)
class _EpochPass:
    """The part of an epoch that one trainer has read: batches `first_batch` to `end_batch`, other ranks' too."""

    first_batch: int
    end_batch: int
    spec: StreamSpec
    seconds: float = 0.0
    waited_fraction: float = 0.0
    bottleneck: EpochBottleneck | None = None


@dataclass(slots=True)
class _OpenEpoch:
    epoch_decodes: _EpochDecodes
    began_s: float
    # A session is in `first_batches` from its first batch until it confirms the epoch or ends. It is in `ended_passes`
    # too from the receipt on, which follows its last batch.
    first_batches: dict[int, int] = field(default_factory=dict)  # by session: the batch at which it began
    ended_passes: dict[int, _EpochPass] = field(default_factory=dict)  # by session
    confirmed_passes: list[_EpochPass] = field(default_factory=list)


class EpochTracker:
    """Tracks the epochs that trainers read. A trainer that begins one after all others have left opens it again."""

    def __init__(self) -> None:
        self._open_epochs: dict[StreamEpoch, _OpenEpoch] = {}
        self._decodes_ahead: dict[StreamEpoch, _EpochDecodes] = {}
        self._epoch_by_session: dict[int, StreamEpoch] = {}  # the epoch of its last batch
        self._epochs_by_session: dict[int, deque[StreamEpoch]] = {}  # those that it is in, the oldest first
        self._began_s: dict[int, float] = {}  # by session

    def on_session_began(self, session: int, now_s: float) -> None:
        """Records when a session was admitted."""
        self._began_s[session] = now_s

    def on_batch_produced(self, key: BatchKey, marks: RowStatus) -> None:
        """Records a batch that was decoded, and how many of its rows are bad."""
        epoch = (key.stream, key.epoch)
        account = self._open_epochs.get(epoch)
        made = account.epoch_decodes if account is not None else self._decodes_ahead.setdefault(epoch, _EpochDecodes())
        if bad := int(np.count_nonzero(marks)):
            made.bad_rows[key.index] = bad
        while len(self._decodes_ahead) > _MAX_EPOCHS_AHEAD:
            del self._decodes_ahead[next(iter(self._decodes_ahead))]

    def on_batch_sent(self, session: int, rank: int, key: BatchKey, now_s: float, *, is_first: bool) -> None:
        """Records a batch that is sent to a session of this rank. The first one of an epoch adds the session to it.

        `is_first`: no session was sent it before, so its decode counts now. A batch that is decoded ahead and dropped
        is never counted.
        """
        at = self._epoch_by_session.get(session)
        epoch = (key.stream, key.epoch)
        account = self._open_epochs.get(epoch)
        if at is None or at[1] != key.epoch:
            self._epoch_by_session[session] = epoch
            if account is None:
                account = self._open_epochs[epoch] = _OpenEpoch(self._decodes_ahead.pop(epoch, _EpochDecodes()), now_s)
            account.first_batches[session] = max(0, key.index - rank)
            epochs = self._epochs_by_session.setdefault(session, deque())
            epochs.append(epoch)
            # A trainer that confirms no epoch would stay in all of them. One that does has batches of fewer epochs.
            if len(epochs) > MAX_OPEN_EPOCHS:
                self._leave_epoch(session, epochs.popleft())
        if is_first and account is not None:
            account.epoch_decodes.decodes += 1

    def on_epoch_sent(self, session: int, spec: StreamSpec, cursor: Cursor) -> None:
        """Records that a session was sent the whole epoch at whose end `cursor` stands."""
        account = self._open_epochs.get((spec.name, cursor.epoch))
        if account is not None and session in account.first_batches:
            account.ended_passes[session] = _EpochPass(
                account.first_batches[session], min(cursor.next_base_index, spec.batches), spec
            )

    def confirm_epoch_received(
        self, session: int, epoch: int, timing: EpochTiming | None, now_s: float
    ) -> list[EpochSummary]:
        """Records that a trainer has received all of an epoch; returns the summary if it was the last, else []."""
        key = (self._epoch_by_session.get(session, ("", 0))[0], epoch)
        account = self._open_epochs.get(key)
        passed = account.ended_passes.pop(session, None) if account is not None else None
        if account is None or passed is None:
            return []
        del account.first_batches[session]
        self._epochs_by_session[session].remove(key)
        seconds = now_s - account.began_s
        if timing is not None:
            # A trainer's own time that is longer than its session's age is replaced by that of the epoch so far.
            if 0 < timing.seconds <= now_s - self._began_s[session]:
                seconds = timing.seconds
            waited = min(1.0, max(0.0, timing.waited_s / seconds)) if seconds else 0.0
            passed = replace(passed, waited_fraction=waited, bottleneck=timing.verdict)
        account.confirmed_passes.append(replace(passed, seconds=seconds))
        return self._close_epoch_if_left(key)

    def remove_session(self, session: int) -> list[EpochSummary]:
        """Removes a session; returns the summaries of epochs that it was the last one in."""
        self._began_s.pop(session, None)
        at = self._epoch_by_session.pop(session, None)
        if at is None:
            return []
        finished: list[EpochSummary] = []
        for epoch in self._epochs_by_session.pop(session, ()):
            finished += self._leave_epoch(session, epoch)
        # Without any trainer of the stream, batches made ahead belong to an epoch that may never begin.
        if all(other[0] != at[0] for other in self._epoch_by_session.values()):
            self._decodes_ahead = {epoch: made for epoch, made in self._decodes_ahead.items() if epoch[0] != at[0]}
        return finished

    def _leave_epoch(self, session: int, epoch: StreamEpoch) -> list[EpochSummary]:
        """Removes a session from an epoch that it has not confirmed; returns the summary if it was the last one."""
        self._open_epochs[epoch].first_batches.pop(session)
        self._open_epochs[epoch].ended_passes.pop(session, None)
        return self._close_epoch_if_left(epoch)

    def _close_epoch_if_left(self, epoch: StreamEpoch) -> list[EpochSummary]:
        """Closes an epoch that no session is in any more. It has a summary if at least one trainer came to its end."""
        if self._open_epochs[epoch].first_batches:
            return []
        account = self._open_epochs.pop(epoch)
        passes, decodes = account.confirmed_passes, account.epoch_decodes
        if not passes:
            return []
        spec, seconds = passes[-1].spec, max(each.seconds for each in passes)
        begin, end = min(each.first_batch for each in passes), max(each.end_batch for each in passes)
        samples = max(0, min(end * spec.batch_size, spec.samples) - begin * spec.batch_size)
        summary = EpochSummary(
            *epoch,
            trainers=len(passes),
            samples=samples,
            seconds=seconds,
            samples_per_s=samples / seconds if seconds else 0.0,
            decodes_per_batch=decodes.decodes / max(1, end - begin),
            bad=sum(decodes.bad_rows.values()),
            verdict=max(passes, key=lambda each: each.waited_fraction).bottleneck,
        )
        return [summary]
