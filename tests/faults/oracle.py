"""The judge of trainers' logs: what each must have taken, from the plan, and what it must have seen, from the files.

It lists and decodes the data by itself, once, and asks no daemon. `Judge` reads one trainer's log, as far as it has
come; `judge` reads a whole one. A step that was undone by a resumption is compared with the one sent again.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from account_log import Began, Ended, Record, Settled, Step, images_digest, labels_digest, read_records
from support.sample_batches import joined

from streamd.config.load import load_config
from streamd.core.receipt import Receipt, format_digest, sum_expected_lanes
from streamd.core.sampler import MASKED, PAD_ID, Ids, RowStatus, replace_bad_sample_ids
from streamd.core.spec import Cursor, RankSteps, Segment, UnevenPolicy
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream
from streamd.decode.decoders import decode_image

_REMEMBERED = 4096  # steps back that a checkpoint may lie and have what was sent again compared
_MOST_PROBLEMS = 20

Key = tuple[int, int]


class Truth:
    """What every batch of a stream must be. `may_be_bad`: samples that a verdict may name, none unless a test says."""

    def __init__(self, config: Mapping[str, object], stream: str, state: Path) -> None:
        """Lists the data of a configuration into `state`, a folder of the oracle's own, and decodes it."""
        loaded = load_config(dict(config))
        write_sample_manifests(loaded, state, lambda *_: None)
        self.served = next(each for each in open_streams(loaded, state) if each.spec.name == stream)
        self.spec = self.served.spec
        self.may_be_bad: set[int] = set()
        self._pixels = _decode_all(self.served)
        self._of = lru_cache(maxsize=65536)(self._digests)

    def close(self) -> None:
        """Lets go of the list of samples."""
        self.served.manifest.close()

    def planned(self, key: Key) -> Ids:
        return self.served.compute_planned_ids(*key)

    def resolved(self, key: Key, bad: frozenset[int]) -> tuple[Ids, RowStatus]:
        return replace_bad_sample_ids(self.planned(key), bad, self.spec.bad_policy)

    def objections(self, step: Step) -> list[str]:
        """What is wrong with a batch, whoever took it."""
        claimed = frozenset(sample for _, sample, _ in step.bad)
        if not claimed <= self.may_be_bad:
            return [f"samples {sorted(claimed - self.may_be_bad)} are called bad and are not"]
        ids, marks = self.resolved((step.epoch, step.index), claimed)
        labels, images = self._of((step.epoch, step.index), claimed)
        bad = [
            (row, int(self.planned((step.epoch, step.index))[row]), "masked" if mark == MASKED else "substituted")
            for row, mark in enumerate(marks.tolist())
            if mark
        ]
        facts = {
            "samples": step.ids == tuple(ids.tolist()),
            "weights": step.weights == tuple((ids != PAD_ID).astype(float).tolist()),
            "labels": step.labels == labels,
            "pixels": step.images == images,
            "bad rows": list(step.bad) == bad,
        }
        return [f"other {name} than the plan and the files give" for name, same in facts.items() if not same]

    def _digests(self, key: Key, bad: frozenset[int]) -> tuple[str, str]:
        ids, _ = self.resolved(key, bad)
        held, listed = ids != PAD_ID, self.served.manifest
        images = np.where(held[:, None, None, None], self._pixels[ids], np.uint8(0))
        labels = {}
        for name, label in self.spec.labels.items():
            values = listed.gather_label(name, np.where(held, ids, 0)).astype(label.dtype)
            values[~held] = np.zeros((), values.dtype)
            labels[name] = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        return labels_digest(labels), images_digest(images)


def _decode_all(stream: ServedStream) -> npt.NDArray[np.uint8]:
    """Every sample's pixels, (n, H, W, C)."""
    pixels = np.zeros((stream.spec.samples, *stream.spec.image_shape), dtype=np.uint8)
    for sample, row in enumerate(pixels):
        decode_image((stream.manifest.root / stream.format_file_name(sample)).read_bytes(), row, stream.spec.image)
    return pixels


@dataclass(slots=True)
class Account:
    """What a log says. `steps` are those that stand, `again` those that were taken again after a resumption."""

    log: str
    steps: int = 0
    lives: int = 0
    again: int = 0
    epochs: int = 0
    ended: bool = False
    problems: list[str] = field(default_factory=list)

    def complain(self, what: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"{self.log}: {what}")


class Judge:
    """Reads one trainer's log record by record; `read` may be called again when the log has grown."""

    def __init__(
        self,
        truth: Truth,
        log: Path,
        *,
        epochs: int | None = 1,
        rank: int = 0,
        world: int = 1,
        uneven: UnevenPolicy = "drop",
        live: bool = False,
    ) -> None:
        self.account = Account(log.name)
        self._truth = truth
        self._log = log
        self._walk = RankSteps(truth.spec.batches, rank, world, uneven, epochs)
        self._live = live
        self._first = Cursor()
        self._at = 0
        self._ends = array("q")  # where in the log each step that stands ends
        self._last: dict[int, Step] = {}  # by its number: those of late that stood, or were undone
        self._settled: set[int] = set()
        self._resumed: set[int] = set()
        self._torn = False

    def read(self) -> Account:
        """Judges what has come since the last time."""
        for end, record in read_records(self._log, self._at):
            self._at = end
            self._judge(record, end)
        self.account.steps = len(self._ends)
        return self.account

    def finish(self) -> Account:
        """Judges the rest: a log that does not come to its end leaves something out."""
        account = self.read()
        if self._torn:
            account.complain("a damaged line at the end")
        if not account.ended:
            account.complain(f"does not end; {account.steps} steps stand")
        if self._key(len(self._ends)) is not None:
            account.complain(f"ends before {self._key(len(self._ends))}")
        self._check_settled()
        return account

    def _judge(self, record: Record | None, end: int) -> None:
        if self._torn and not isinstance(record, Began):
            self.account.complain(f"a damaged line before byte {end}, and no kill behind it")
        self._torn = record is None
        match record:
            case Began():
                self._begin(record)
            case Step():
                self._take(record, end)
            case Settled(receipt):
                self._settle(receipt)
            case Ended():
                self.account.ended = True

    def _begin(self, began: Began) -> None:
        self.account.lives += 1
        if began.order_id != self._truth.spec.order_id:
            self.account.complain(f"is of order {began.order_id}, not {self._truth.spec.order_id}")
        if self.account.lives == 1 and self._live:
            self._first = Cursor(began.first_epoch, begin=began.first_base)
        stand = 0 if began.position == 0 else self._standing(began.position)
        del self._ends[stand:]
        self._resumed.add(stand)

    def _standing(self, position: int) -> int:
        """How many steps stood when the log was `position` bytes long."""
        ends = self._ends
        for count in range(len(ends), 0, -1):
            if ends[count - 1] == position:
                return count
        self.account.complain(f"resumed at byte {position}, where no step that stands ends")
        return len(ends)

    def _take(self, step: Step, end: int) -> None:
        number, key = len(self._ends), (step.epoch, step.index)
        if key != self._key(number):
            self.account.complain(f"step {number} is batch {key}, where {self._key(number)} must come")
        for objection in self._truth.objections(step):
            self.account.complain(f"batch {key} has {objection}")
        self._compare(number, step)
        self._ends.append(end)

    def _compare(self, number: int, step: Step) -> None:
        before = self._last.pop(number, None)
        if before is not None:
            self.account.again += 1
            if before.bad == step.bad and _content(before) != _content(step):
                self.account.complain(f"batch {(step.epoch, step.index)} was sent again with other bytes")
        self._last[number] = step
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]

    def _settle(self, receipt: Receipt) -> None:
        epoch, account = receipt.epoch, self.account
        if not receipt.ok or receipt.missed or receipt.repeated:
            account.complain(f"the receipt of epoch {epoch} does not add up: {receipt}")
        if not receipt.complete:
            return
        begin, steps = self._epoch(epoch)
        segment = Segment(begin, steps, self._walk.rank, self._walk.world)
        digest = format_digest(
            sum_expected_lanes(
                self._truth.spec.order_id,
                epoch,
                [segment],
                lambda indices: joined(self._truth.planned((epoch, index)) for index in indices),
            )
        )
        if receipt.digest != digest:
            account.complain(f"the receipt of epoch {epoch} has digest {receipt.digest}, not {digest}")
        spec = self._truth.spec
        dropped = max(0, spec.samples - min(segment.next_base_index, spec.batches) * spec.batch_size)
        if receipt.dropped != dropped:
            account.complain(f"the receipt of epoch {epoch} says {receipt.dropped} dropped, not {dropped}")
        self._settled.add(epoch)

    def _check_settled(self) -> None:
        """Every whole epoch has its receipt, but one at whose very end a killed trainer resumed."""
        stand = 0
        for epoch in itertools.count(self._first.epoch):
            stand += self._epoch(epoch)[1]
            if stand > len(self._ends) or not self._walk.steps_per_epoch:
                return
            self.account.epochs += 1
            if epoch not in self._settled and stand not in self._resumed:
                self.account.complain(f"epoch {epoch} has no receipt")

    def _epoch(self, epoch: int) -> tuple[int, int]:
        """Where an epoch of this trainer begins, and how many steps it has."""
        first = epoch == self._first.epoch
        return (
            (self._first.next_base_index, self._walk.step_after(self._first).steps)
            if first
            else (0, self._walk.steps_per_epoch)
        )

    def _key(self, number: int) -> Key | None:
        """Which batch must be step `number`; None beyond the last."""
        epoch = self._first.epoch
        begin, steps = self._epoch(epoch)
        if number >= steps:
            further, number = divmod(number - steps, self._walk.steps_per_epoch)
            epoch, begin = epoch + 1 + further, 0
        if self._walk.epochs is not None and epoch >= self._walk.epochs + (self._first.epoch if self._live else 0):
            return None
        return epoch, begin + number * self._walk.world + self._walk.rank


def _content(step: Step) -> tuple[object, ...]:
    return step.ids, step.weights, step.labels, step.images


def judge(truth: Truth, log: Path, **walk: object) -> Account:
    """Judges a log that is at its end; `walk` as for `Judge`."""
    return Judge(truth, log, **walk).finish()  # type: ignore[arg-type]  # keywords pass through


def standing_steps(log: Path) -> list[Step]:
    """The steps of a log that no resumption has undone."""
    steps: list[tuple[int, Step]] = []
    for end, record in read_records(log):
        if isinstance(record, Began):
            steps = [(at, step) for at, step in steps if at <= record.position]
        elif isinstance(record, Step):
            steps.append((end, record))
    return [step for _, step in steps]


def union_problems(truth: Truth, logs: Iterable[Path], epochs: int) -> list[str]:
    """What is wrong with the union of all ranks' logs: each epoch's samples once, except for those of the tail.

    The tail is what the receipts call dropped: less than a step of all ranks.
    """
    logs = list(logs)
    problems = []
    for epoch in range(epochs):
        taken = [step.index for log in logs for step in standing_steps(log) if step.epoch == epoch]
        tail = truth.spec.batches % len(logs)
        if sorted(taken) != list(range(truth.spec.batches - tail)):
            problems.append(f"epoch {epoch}: the ranks took {len(taken)} batches, {len(set(taken))} different ones")
        ids = [each for log in logs for step in standing_steps(log) if step.epoch == epoch for each in step.ids]
        dropped = truth.spec.samples - len(set(ids))
        said = {
            record.receipt.dropped
            for log in logs
            for _, record in read_records(log)
            if isinstance(record, Settled) and record.receipt.epoch == epoch
        }
        if len(ids) != len(set(ids)) or said != {dropped}:
            problems.append(f"epoch {epoch}: {len(ids)} samples, {dropped} of all left out, receipts say {said}")
    return problems
