"""Which samples are to blame for a loss that is no finite number, in words. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.text import format_list

_MAX_NAMED: Final = 8  # samples: more of them fit no line


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """What is kept of a batch that went to a model: not its images, whose memory is lent.

    `labels` are those that the model got, numbers of shape (B,) or (B, k).
    """

    epoch: int
    index: int
    sample_ids: Ids
    labels: Mapping[str, npt.NDArray[Any]]

    @property
    def batch_position_text(self) -> str:
        return f"{self.epoch}:{self.index}"

    def find_non_finite_labels(self) -> dict[str, list[int]]:
        """The samples of which a label is NaN or infinite, by that label."""
        odd = {name: ~np.isfinite(values.reshape(len(values), -1)).all(axis=1) for name, values in self.labels.items()}
        return {name: self.sample_ids[rows].tolist() for name, rows in odd.items() if rows.any()}


class PendingSteps:
    """The batches that a model was given and has not finished: they finish in the order in which it takes them."""

    def __init__(self) -> None:
        self._steps: deque[StepRecord] = deque()
        self._done = 0

    def begin_epoch(self) -> None:
        """An epoch begins, and so does the count of its steps."""
        self._steps.clear()
        self._done = 0

    def add_step(self, step: StepRecord) -> None:
        """One more batch goes to the model."""
        self._steps.append(step)

    def take_finished_steps(self, steps: int) -> list[StepRecord]:
        """Takes word that `steps` of the epoch are done, and returns those that are new; it may say too many."""
        new = [self._steps.popleft() for _ in range(min(steps - self._done, len(self._steps)))]
        self._done += len(new)
        return new


def find_suspects(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps with a label that is no finite number; all of them where there is none."""
    return [step for step in steps if step.find_non_finite_labels()] or list(steps)


def describe_loss(loss: float, stream: str, steps: Sequence[StepRecord], files: Mapping[int, str]) -> str:
    """What happened and why, two lines. `files` are names by sample id, of those that are known."""
    return f"the loss is {loss} after {_describe_steps(stream, steps)}\n{_describe_loss_cause(steps, files)}"


def _describe_steps(stream: str, steps: Sequence[StepRecord]) -> str:
    if len(steps) == 1:
        return f"batch {steps[0].batch_position_text} of {stream!r}"
    return (
        f"batches {steps[0].batch_position_text} to {steps[-1].batch_position_text} of {stream!r}, which were "
        "executed together (steps_per_execution): the loss does not tell them apart"
    )


def _describe_loss_cause(steps: Sequence[StepRecord], files: Mapping[int, str]) -> str:
    found: dict[str, list[int]] = {}
    for step in steps:
        for name, ids in step.find_non_finite_labels().items():
            found.setdefault(name, []).extend(ids)
    if not found:
        return (
            "all its labels are finite, so the weights have outgrown their numbers, here or in the step before: try a "
            "smaller learning rate, or an optimizer with clipnorm"
        )
    samples = sum(step.sample_ids.size for step in steps)
    return "\n".join(
        f"label {name!r} is NaN or infinite in {len(ids)} of {samples} samples, which spoils the loss: mend "
        f"{_format_samples(ids, files)}"
        for name, ids in found.items()
    )


def _format_samples(ids: Sequence[int], files: Mapping[int, str]) -> str:
    return format_list([f"#{each} {files.get(each, '')}".rstrip() for each in ids], _MAX_NAMED)
