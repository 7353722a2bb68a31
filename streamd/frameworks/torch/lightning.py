"""A callback for Lightning's Trainer. Imports Lightning.

Lightning needs no more than a loader: it tells it each epoch, and its checkpoints have the loader's position.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from streamd.errors import ConfigError
from streamd.frameworks.model_inputs import FeedStream
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import Loader


class ReceiptCallback(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """Writes the receipts of the training's streams to DIRECTORY/receipts-RANK.jsonl, for `streamd verify`.

    Each is written before a checkpoint from which the next epoch follows, and at the end of the fit. Refuses what
    Lightning cannot do to a stream: `overfit_batches` over a loader whose epochs differ.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._files: dict[FeedStream, ReceiptFile] = {}

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Notes the streams of the epoch, which Lightning may have asked for anew. Raises ConfigError."""
        for data in _list_loaders(trainer.train_dataloader):
            if trainer.overfit_batches and not data.anew:
                raise ConfigError(
                    f"overfit_batches would train on other samples of stream {data.stream.spec.name!r} in each epoch: "
                    "write  loader(stream, evaluate=True)  for the same ones"
                )
            if data.stream not in self._files:
                path = receipt_file_path(self._directory, data.stream.rank)
                self._files[data.stream] = ReceiptFile(path)

    def on_save_checkpoint(self, *_: Any) -> None:
        """Writes new receipts. Lightning calls this in every rank: before it writes the file, and at the end."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for stream, file in self._files.items():
            file.append_new_receipts(stream.receipts)

    on_train_end = on_save_checkpoint


def _list_loaders(given: Any) -> list[Loader]:
    """Returns streamd's loaders among what Lightning calls its data loaders: one, or a collection of them."""
    if isinstance(given, Loader):
        return [given]
    several = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ()
    return [found for each in several for found in _list_loaders(each)]
