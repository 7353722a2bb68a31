"""The callback that ends a training whose loss is NaN or infinite. Imports Keras: `frameworks.keras` imports it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import numpy.typing as npt

from streamd.client import Batch, Client, notebook
from streamd.core.sampler import PAD_ID, Ids
from streamd.core.spec import ImageSpec
from streamd.core.text import format_list
from streamd.errors import ConfigError, LossError, StreamdError
from streamd.frameworks.keras.adapter import StreamAdapter
from streamd.frameworks.keras.calls import PendingSteps, check_data_of_running_fit

# --- Finds the samples that caused a NaN or infinite loss, and describes them. Pure.

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


# --- The callback that ends a training whose loss is NaN or infinite. Imports Keras: `frameworks.keras` imports it.

_MAX_DRAWN: Final = 8  # batches, where several were executed together


class NanGuard(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Ends a training when its loss is NaN or infinite, and saves the batch that caused it as a page of pictures.

        data = fit_data(stream)
        model.fit(data, callbacks=[NanGuard(data, client)])

    `fit` raises LossError, which names the batch, the samples whose labels or images are not finite, and the page:
    `nan-STREAM-EPOCH-INDEX.html` in `directory`, with every image of the batch, its labels, sample id and file. Of
    masks that the model learns, it names those with pixels of no class. If several steps are one execution, the error
    names them all, and pages are made of the batches with such labels, or of the first eight. This callback runs before
    those that follow it in the list and before ResumeCallback, which saves no state of that step.

    The images are requested from the daemon again, which makes the same batch, so nothing is copied as long as the loss
    is finite. The loss is read after each step, so Keras does not run ahead of a device. A deep copy, as KerasTuner
    makes for each trial, has the same data and client. Raises ConfigError for `data` that fit_data did not make.
    """

    def __init__(self, data: StreamAdapter, client: Client, directory: str | Path = ".") -> None:
        super().__init__()
        if not isinstance(data, StreamAdapter):
            raise ConfigError(f"NanGuard needs what fit_data gave to fit, not {type(data).__name__}")
        self._data = data
        self._client = client
        self._directory = Path(directory)
        self._pending_steps = PendingSteps[StepRecord]()

    def __deepcopy__(self, memo: dict[int, Any]) -> NanGuard:
        """Returns a copy for another `fit` on the same data, which cannot be copied themselves."""
        memo |= {id(each): each for each in (self._data, self._client)}
        memo[id(self)] = copied = type(self).__new__(type(self))
        copied.__dict__ |= deepcopy(self.__dict__, memo)
        return copied

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        check_data_of_running_fit(self._data, "NanGuard", "NanGuard(data, client)")
        self._data.on_batch = self._add_pending_step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._pending_steps.begin_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = self._pending_steps.finish_steps(batch + 1)
        loss = (logs or {}).get("loss")
        if loss is None or math.isfinite(loss):
            return
        self._data.on_batch = None
        stream, feed, pages = self._data.spec.name, self._data.feed, list[str]()
        files: dict[int, str] = {}
        faults: list[PixelFault] = []
        are_images_examined = False
        try:
            for step in find_suspects(steps)[:_MAX_DRAWN]:
                ids = step.sample_ids.tolist()
                files |= zip(ids, self._client.names(stream, ids), strict=True)
                drawn = self._fetch_batch(stream, step)
                arrays = {name: drawn.arrays[name] for name in feed.array_names if name in drawn.arrays}
                faults += find_pixel_faults(arrays, drawn.sample_ids, drawn.spec.images, feed.targets)
                self._directory.mkdir(parents=True, exist_ok=True)
                page = self._directory / f"nan-{stream}-{drawn.epoch}-{drawn.index}.html"
                page.write_text(notebook.render_batch_page(drawn, files), encoding="utf-8")
                pages.append(str(page))
            are_images_examined = len(pages) == len(steps)
            pictures = f"its pictures are in: {', '.join(pages)}"
        except (StreamdError, OSError) as error:
            pictures = f"its pictures could not be saved: {error}"
        cause = describe_loss(loss, stream, steps, files, faults if faults or are_images_examined else None)
        raise LossError(f"{cause}\n{pictures}")

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._data.on_batch = None

    def _add_pending_step(self, batch: Batch) -> None:
        labels = {name: batch.labels[name] for name in self._data.feed.array_names if name in batch.labels}
        self._pending_steps.unfinished.append(StepRecord(batch.epoch, batch.index, batch.sample_ids, labels))

    def _fetch_batch(self, stream: str, step: StepRecord) -> Batch:
        batch = self._client.batch(stream, step.epoch, step.index)
        if not np.array_equal(batch.sample_ids, step.sample_ids):
            raise StreamdError(
                f"batch {step.batch_position_text} of {stream!r} does not hold the samples that the trainer received, "
                "because the trainer takes batches of another size; the trainer's sample ids were "
                f"{', '.join(map(str, step.sample_ids.tolist()))}"
            )
        return batch
