"""Finds the samples that caused a NaN or infinite loss, and describes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import Ids
from streamd.core.text import format_list

_MAX_NAMED: Final = 8  # samples that fit in a line


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """The parts of a batch that are kept while a model works on it. Its images are not, since their memory is leased.

    `labels` are those that the model received, numbers of shape (B,) or (B, k).
    """

    epoch: int
    index: int
    sample_ids: Ids
    labels: Mapping[str, npt.NDArray[Any]]

    @property
    def batch_position_text(self) -> str:
        return f"{self.epoch}:{self.index}"

    def find_non_finite_labels(self) -> dict[str, list[int]]:
        """Returns, by label, the samples whose value of that label is NaN or infinite."""
        odd = {name: ~np.isfinite(values.reshape(len(values), -1)).all(axis=1) for name, values in self.labels.items()}
        return {name: self.sample_ids[rows].tolist() for name, rows in odd.items() if rows.any()}


def find_suspects(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """Returns the steps with a label that is not finite; all steps if there is none."""
    return [step for step in steps if step.find_non_finite_labels()] or list(steps)


def describe_loss(loss: float, stream: str, steps: Sequence[StepRecord], files: Mapping[int, str]) -> str:
    """Describes what happened and why, in two or more lines. `files` are the known file names by sample id."""
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
            "all its labels are finite, so the weights have overflowed, in this step or the one before: try a "
            "smaller learning rate, or an optimizer with clipnorm"
        )
    samples = sum(step.sample_ids.size for step in steps)
    return "\n".join(
        f"label {name!r} is NaN or infinite in {len(ids)} of {samples} samples, which makes the loss NaN or infinite: "
        f"fix {_format_samples(ids, files)}"
        for name, ids in found.items()
    )


def _format_samples(ids: Sequence[int], files: Mapping[int, str]) -> str:
    return format_list([f"#{each} {files.get(each, '')}".rstrip() for each in ids], _MAX_NAMED)
