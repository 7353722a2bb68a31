"""The callback that ends a training whose loss is no number any more. Imports Keras: `frameworks.keras` loads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import keras
import numpy as np

from streamd.client import Batch, notebook
from streamd.errors import ConfigError, LossError, StreamdError
from streamd.frameworks import model_inputs
from streamd.frameworks.keras.adapter import StreamAdapter
from streamd.frameworks.keras.nan_report import Step, Taken, story, suspects

_DRAWN: Final = 8  # batches, where several were executed together


class Source(Protocol):
    """What is asked of a client."""

    def batch(self, stream: str, epoch: int, index: int, /) -> Batch: ...
    def names(self, stream: str, sample_ids: Iterable[int], /) -> list[str]: ...


class NanGuard(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Ends a training when its loss is NaN or infinite, and saves the batch that made it so as a page of pictures.

        data = fit_data(stream)
        model.fit(data, callbacks=[NanGuard(data, client)])

    `fit` raises LossError, which names the batch, the samples whose labels are no finite numbers, and the page:
    `nan-STREAM-EPOCH-INDEX.html` in `directory`, every image of the batch with its labels, sample id and file. Where
    several steps are one execution it names them all, and draws those with such labels, or the first eight. Its turn
    comes before that of callbacks that follow it and of ResumeCallback, which saves nothing of that step.

    The images are asked of the daemon once more, which makes the same batch: nothing is copied while all is well. The
    loss of each step is looked at when the step is done, so Keras does not run ahead of a device. Raises ConfigError
    for `data` that fit_data did not make.
    """

    def __init__(self, data: StreamAdapter, client: Source, directory: str | Path = ".") -> None:
        super().__init__()
        if not isinstance(data, StreamAdapter):
            raise ConfigError(f"NanGuard needs what fit_data gave to fit, not {type(data).__name__}")
        self._data = data
        self._client = client
        self._directory = Path(directory)
        self._taken = Taken()

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._data.watch = self._watch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._taken.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps = self._taken.finish(batch + 1)
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            self._end(loss, steps)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's signature
        self._data.watch = None

    def _watch(self, batch: model_inputs.Batch) -> None:
        labels = {name: batch.labels[name] for name in _labels(self._data.feed)}
        self._taken.take(Step(batch.epoch, batch.index, batch.sample_ids, labels))

    def _end(self, loss: float, steps: Sequence[Step]) -> NoReturn:
        self._data.watch = None
        stream, shown = self._data.spec.name, suspects(steps)[:_DRAWN]
        files: dict[int, str] = {}
        try:
            for step in shown:
                ids = step.sample_ids.tolist()
                files |= zip(ids, self._client.names(stream, ids), strict=True)
            pages = [str(self._draw(stream, step, files)) for step in shown]
            pictures = f"its pictures: {', '.join(pages)}"
        except (StreamdError, OSError) as error:
            pictures = f"its pictures could not be saved: {error}"
        raise LossError(f"{story(loss, stream, steps, files)}\n{pictures}")

    def _draw(self, stream: str, step: Step, files: dict[int, str]) -> Path:
        batch = self._client.batch(stream, step.epoch, step.index)
        if not np.array_equal(batch.sample_ids, step.sample_ids):
            raise StreamdError(
                f"batch {step.place} of {stream!r} holds other samples than the trainer's, which takes batches of "
                f"another size; these were {', '.join(map(str, step.sample_ids.tolist()))}"
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        page = self._directory / f"nan-{stream}-{step.epoch}-{step.index}.html"
        page.write_text(notebook.page(batch, files), encoding="utf-8")
        return page


def _labels(chosen: model_inputs.Feed) -> tuple[str, ...]:
    """The labels that go to the model."""
    targets = (chosen.targets,) if isinstance(chosen.targets, str) else chosen.targets or ()
    return (*chosen.inputs, *targets)
