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
    lines = [_describe_label_fault(name, ids, samples, files) for name, ids in _join_odd_labels(steps).items()]
    joined = _join_faults(faults or ())
    lines += [_describe_pixel_fault(fault, samples, files) for fault in joined if fault.fill is None]
    if not lines:
        lines = [_describe_fill(fault, samples, files) for fault in joined if fault.fill is not None]
        lines.append(_describe_overflow(is_certain=faults is not None and not lines))
    return "\n".join([f"the loss is {loss} after {_describe_steps(stream, steps)}", *lines])


def _describe_steps(stream: str, steps: Sequence[StepRecord]) -> str:
    if len(steps) == 1:
        return f"batch {steps[0].batch_position_text} of {stream!r}"
    return (
        f"batches {steps[0].batch_position_text} to {steps[-1].batch_position_text} of {stream!r}, which were "
        "executed together (steps_per_execution): the loss does not tell them apart"
    )


def _join_odd_labels(steps: Sequence[StepRecord]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for step in steps:
        for name, ids in step.find_non_finite_labels().items():
            found.setdefault(name, []).extend(ids)
    return found


def _join_faults(faults: Iterable[PixelFault]) -> list[PixelFault]:
    """Returns one fault for each image and kind, with the samples of all batches."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for fault in faults:
        found.setdefault((fault.image, fault.fill), []).extend(fault.sample_ids)
    return [PixelFault(image, tuple(ids), fill) for (image, fill), ids in found.items()]


def _describe_label_fault(name: str, ids: Sequence[int], samples: int, files: Mapping[int, str]) -> str:
    return (
        f"label {name!r} is NaN or infinite in {len(ids)} of {samples} samples, which makes the loss NaN or infinite: "
        f"fix {_format_samples(ids, files)}"
    )


def _describe_pixel_fault(fault: PixelFault, samples: int, files: Mapping[int, str]) -> str:
    return (
        f"image {fault.image!r} has pixels that are NaN or infinite in {len(fault.sample_ids)} of {samples} samples, "
        f"which makes the loss NaN or infinite: fix {_format_samples(fault.sample_ids, files)}"
    )


def _describe_fill(fault: PixelFault, samples: int, files: Mapping[int, str]) -> str:
    return (
        f"image {fault.image!r} has the number {fault.fill}, which stands for no class, in {len(fault.sample_ids)} of "
        f"{samples} samples ({_format_samples(fault.sample_ids, files)}): a loss over fewer classes is NaN there, also "
        f"where the weight is 0; leave it out, as  SparseCategoricalCrossentropy(ignore_class={fault.fill})  does"
    )


def _describe_overflow(*, is_certain: bool) -> str:
    remedy = "try a smaller learning rate, or an optimizer with clipnorm"
    if is_certain:
        return (
            f"all its labels and pixels are finite, so the weights have overflowed, in this step or the one before: "
            f"{remedy}"
        )
    return f"all its labels are finite; if its images are too, the weights have overflowed: {remedy}"


def _format_samples(ids: Sequence[int], files: Mapping[int, str]) -> str:
    return format_list([_format_sample(each, files) for each in ids], _MAX_NAMED)


def _format_sample(sample_id: int, files: Mapping[int, str]) -> str:
    return "a row without a sample" if sample_id == PAD_ID else f"#{sample_id} {files.get(sample_id, '')}".rstrip()
