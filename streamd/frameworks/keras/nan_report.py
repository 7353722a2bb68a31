"""Finds the samples that caused a NaN or infinite loss, and describes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.sampler import PAD_ID, Ids
from streamd.core.spec import ImageSpec
from streamd.core.text import format_list

_MAX_NAMED: Final = 8  # samples that fit in a line


@dataclass(frozen=True, slots=True, eq=False)
class StepRecord:
    """The parts of a batch that are kept while a model works on it. Its images are not, since their memory is leased.

    `labels` are those that the model received, numbers of shape (B, ...).
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
        odd = {name: _find_odd_rows(~np.isfinite(values)) for name, values in self.labels.items()}
        return {name: self.sample_ids[rows].tolist() for name, rows in odd.items() if rows.any()}


@dataclass(frozen=True, slots=True)
class PixelFault:
    """The samples of a batch whose `image` has pixels that are not finite, or that have the class number `fill`."""

    image: str
    sample_ids: tuple[int, ...]
    fill: int | None = None


def find_pixel_faults(
    arrays: Mapping[str, npt.NDArray[Any]], sample_ids: Ids, images: Mapping[str, ImageSpec], targets: Iterable[str]
) -> list[PixelFault]:
    """Returns what could make a loss NaN in the images that a model received, `arrays`.

    These are numbers that are not finite, and in targets of mode index the number of pixels without a class.
    """
    faults = []
    for name, values in arrays.items():
        if values.dtype.kind == "f":
            rows, fill = _find_odd_rows(~np.isfinite(values)), None
        elif images[name].mode == "index" and name in targets:
            fill = images[name].fill
            rows = _find_odd_rows(values == fill)
        else:
            continue
        if rows.any():
            faults.append(PixelFault(name, tuple(sample_ids[rows].tolist()), fill))
    return faults


def _find_odd_rows(is_odd: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Returns whether any value of each row is odd."""
    return np.asarray(is_odd.reshape(len(is_odd), -1).any(axis=1))


def find_suspects(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """Returns the steps with a label that is not finite; all steps if there is none."""
    return [step for step in steps if step.find_non_finite_labels()] or list(steps)


def describe_loss(
    loss: float,
    stream: str,
    steps: Sequence[StepRecord],
    files: Mapping[int, str],
    faults: Sequence[PixelFault] | None = (),
) -> str:
    """Describes what happened and why, in two or more lines.

    `files` are the known file names by sample id. `faults` are those of the images of all steps; None where the images
    could not be examined.
    """
    samples = sum(step.sample_ids.size for step in steps)
    where = f"batch {steps[0].batch_position_text} of {stream!r}"
    if len(steps) > 1:
        where = (
            f"batches {steps[0].batch_position_text} to {steps[-1].batch_position_text} of {stream!r}, which were "
            "executed together (steps_per_execution): the loss does not tell them apart"
        )
    lines = [f"the loss is {loss} after {where}"]

    def name_samples(ids: Sequence[int]) -> str:
        named = (
            f"#{each} {files.get(each, '')}".rstrip() if each != PAD_ID else "a row without a sample" for each in ids
        )
        return format_list(list(named), _MAX_NAMED)

    # The samples of all batches are joined by what is odd about them: a label, or an image and its kind of fault.
    spoiled: dict[str, list[int]] = {}
    unclassed: dict[tuple[str, int], list[int]] = {}
    for step in steps:
        for name, ids in step.find_non_finite_labels().items():
            spoiled.setdefault(f"label {name!r} is", []).extend(ids)
    for fault in faults or ():
        if fault.fill is None:
            spoiled.setdefault(f"image {fault.image!r} has pixels that are", []).extend(fault.sample_ids)
        else:
            unclassed.setdefault((fault.image, fault.fill), []).extend(fault.sample_ids)
    # What is not finite is the cause for certain, so nothing else is said.
    for what, ids in spoiled.items():
        lines.append(
            f"{what} NaN or infinite in {len(ids)} of {samples} samples, which makes the loss NaN or infinite: "
            f"fix {name_samples(ids)}"
        )
    if spoiled:
        return "\n".join(lines)
    # Pixels without a class are a cause for some losses alone, so the weights are named beside them.
    for (image, fill), ids in unclassed.items():
        lines.append(
            f"image {image!r} has the number {fill}, which stands for no class, in {len(ids)} of {samples} samples "
            f"({name_samples(ids)}): a loss over fewer classes is NaN there, also where the weight is 0; leave it out, "
            f"as  SparseCategoricalCrossentropy(ignore_class={fill})  does"
        )
    cause = "all its labels are finite; if its images are too, the weights have overflowed"
    if faults is not None and not unclassed:
        cause = "all its labels and pixels are finite, so the weights have overflowed, in this step or the one before"
    return "\n".join([*lines, f"{cause}: try a smaller learning rate, or an optimizer with clipnorm"])
