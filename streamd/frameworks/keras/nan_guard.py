"""The callback that ends a training whose loss is NaN or infinite. Imports Keras: `frameworks.keras` imports it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Protocol

import keras
import numpy as np

from streamd.client import Batch, notebook
from streamd.errors import ConfigError, LossError, StreamdError
from streamd.frameworks.keras.adapter import StreamAdapter
from streamd.frameworks.keras.calls import PendingSteps, check_data_of_running_fit
from streamd.frameworks.keras.nan_report import (
    PixelFault,
    StepRecord,
    describe_loss,
    find_pixel_faults,
    find_suspects,
)

_MAX_DRAWN: Final = 8  # batches, where several were executed together


class BatchClient(Protocol):
    """The methods of a client that `NanGuard` calls."""

    def batch(self, stream: str, epoch: int, index: int, /) -> Batch: ...
    def names(self, stream: str, sample_ids: Iterable[int], /) -> list[str]: ...


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

    def __init__(self, data: StreamAdapter, client: BatchClient, directory: str | Path = ".") -> None:
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
        steps = self._pending_steps.take_finished_steps(batch + 1)
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
        self._pending_steps.add_step(StepRecord(batch.epoch, batch.index, batch.sample_ids, labels))

    def _fetch_batch(self, stream: str, step: StepRecord) -> Batch:
        batch = self._client.batch(stream, step.epoch, step.index)
        if not np.array_equal(batch.sample_ids, step.sample_ids):
            raise StreamdError(
                f"batch {step.batch_position_text} of {stream!r} does not hold the samples that the trainer received, "
                "because the trainer takes batches of another size; the trainer's sample ids were "
                f"{', '.join(map(str, step.sample_ids.tolist()))}"
            )
        return batch
