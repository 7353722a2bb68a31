"""Run with Lightning, beside a daemon: checks which samples each of the Trainer's arguments trains and validates on.

    python lightning_program.py ENDPOINT FOLDER

The label of a sample is its number. A failed check ends the program.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import lightning as L  # noqa: N812 - as its own documentation does
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import streamd
from streamd.client import Client
from streamd.errors import ConfigError, NoCopyError, NoDatasetError
from streamd.frameworks.torch import loader
from streamd.frameworks.torch.lightning import ReceiptCallback

STEPS: Final = 5  # an epoch: 40 samples in batches of 8
Samples = list[list[int]]  # of one pass, by batch

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Recorder(L.LightningModule):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """Trains a number, and notes the samples of each pass that is not a sanity check."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(1))
        self.trained: dict[int, Samples] = {}
        self.validated: list[Samples] = []
        self.sanity: Samples = []
        if load is not None:
            self.train_dataloader = load

    def training_step(self, batch: Any) -> Any:
        self.trained.setdefault(self.current_epoch, []).append(batch[1].tolist())
        return (self.number - batch[1].float().mean() / 40) ** 2

    def on_validation_epoch_start(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append([])

    def validation_step(self, batch: Any, _: int) -> None:
        (self.sanity if self.trainer.sanity_checking else self.validated[-1]).append(batch[1].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(
    client: Client, model: Recorder, data: Any = None, ckpt_path: Any = None, callbacks: Any = (), **settings: Any
) -> L.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saves = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    given = {"max_epochs": 3, "accelerator": "cpu", "enable_checkpointing": saves, "callbacks": list(callbacks)}
    trainer = L.Trainer(**{**given, **quiet, **settings})
    with client.subscribe("validation") as held_back:
        trainer.fit(model, data, loader(held_back), ckpt_path=ckpt_path)
    return trainer


def read(client: Client, stream: str, epoch: int, steps: int = STEPS, begin: int = 0) -> Samples:
    return [client.batch(stream, epoch, index).labels["number"].tolist() for index in range(begin, steps)]


def check_arguments(client: Client) -> None:
    """Epoch k of Lightning is epoch k of the stream, or its first batches; each validation begins at index 0."""
    rows: list[tuple[dict[str, Any], dict[int, int], list[int]]] = [  # steps by epoch, and of each validation
        ({}, {0: 5, 1: 5, 2: 5}, [5, 5, 5]),
        ({"num_sanity_val_steps": 0}, {0: 5, 1: 5, 2: 5}, [5, 5, 5]),
        ({"num_sanity_val_steps": -1}, {0: 5, 1: 5, 2: 5}, [5, 5, 5]),
        ({"limit_train_batches": 3}, {0: 3, 1: 3, 2: 3}, [5, 5, 5]),
        ({"limit_train_batches": 0.4, "limit_val_batches": 2}, {0: 2, 1: 2, 2: 2}, [2, 2, 2]),
        ({"accumulate_grad_batches": 2}, {0: 5, 1: 5, 2: 5}, [5, 5, 5]),
        ({"val_check_interval": 2}, {0: 5, 1: 5, 2: 5}, [5] * 6),
        ({"val_check_interval": 0.5, "limit_val_batches": 1}, {0: 5, 1: 5, 2: 5}, [1] * 6),
        ({"val_check_interval": 4, "check_val_every_n_epoch": None}, {0: 5, 1: 5, 2: 5}, [5] * 3),
        ({"check_val_every_n_epoch": 2}, {0: 5, 1: 5, 2: 5}, [5]),
        ({"max_steps": 7, "max_epochs": -1}, {0: 5, 1: 2}, [5]),
        ({"max_steps": 7, "max_epochs": -1, "limit_train_batches": 3}, {0: 3, 1: 3, 2: 1}, [5, 5]),
        ({"fast_dev_run": 2}, {0: 2}, [2]),
        ({"use_distributed_sampler": False, "strategy": "auto"}, {0: 5, 1: 5, 2: 5}, [5, 5, 5]),
        ({"reload_dataloaders_every_n_epochs": 1}, {0: 5, 1: 5, 2: 5}, [5, 5, 5]),
    ]
    for settings, steps, validations in rows:
        with client.subscribe("train") as stream:
            model = Recorder()
            trainer = fit(client, model, loader(stream), **settings)
        whole = {epoch: read(client, "train", epoch, count) for epoch, count in steps.items()}
        assert model.trained == whole, (settings, model.trained)
        assert model.validated == [read(client, "validation", 0, count) for count in validations], settings
        sanity = 0 if "fast_dev_run" in settings else min(settings.get("limit_val_batches", 2), 2)
        sanity = {0: 0, -1: 5}.get(settings.get("num_sanity_val_steps", 2), sanity)
        assert model.sanity == read(client, "validation", 0, sanity), settings
        assert all(each.ok for each in stream.receipts), settings
        if "accumulate_grad_batches" in settings:
            assert trainer.global_step == 3 * 3, "the last batch of an epoch ends an accumulation"


def check_loaders_made_anew(client: Client) -> None:
    """A hook that Lightning calls for each epoch gives the next epoch too, whatever it subscribes."""
    with client.subscribe("train") as stream:
        for load in (lambda: loader(stream), lambda: loader(client.subscribe("train"))):
            stream.rewind()
            model = Recorder(load)
            fit(client, model, reload_dataloaders_every_n_epochs=1, limit_train_batches=3)
            assert model.trained == {epoch: read(client, "train", epoch, 3) for epoch in range(3)}


def check_overfit(client: Client, folder: Path) -> None:
    """The same batches each time, or an error."""
    with client.subscribe("train") as stream:
        model = Recorder()
        fit(client, model, loader(stream, evaluate=True), overfit_batches=2, callbacks=[ReceiptCallback(folder)])
        assert model.trained == dict.fromkeys(range(3), read(client, "train", 0, 2))
    with client.subscribe("train") as stream, pytest.raises(ConfigError, match=r"loader\(stream, evaluate=True\)"):
        fit(client, Recorder(), loader(stream), overfit_batches=2, callbacks=[ReceiptCallback(folder)])


class StopError(Exception):
    """What ends a training in mid-epoch."""


class Stopper(L.Callback):  # type: ignore[misc]  # as above
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.steps:
            raise StopError


def check_resume(client: Client, folder: Path) -> None:
    """At each step, also the last of an epoch and with a limit: what was not trained yet comes, and nothing else."""
    for limit in (STEPS, 3):
        for stop in range(1, 2 * limit + 1):
            place = folder / f"{limit}-{stop}"
            seen: dict[int, Samples] = {}
            with client.subscribe("train") as stream, suppress(StopError):
                model = Recorder()
                saving = ModelCheckpoint(place, "last", every_n_train_steps=1, enable_version_counter=False)
                fit(client, model, loader(stream), callbacks=[Stopper(stop), saving], limit_train_batches=limit)
            seen = model.trained
            with client.subscribe("train") as stream:
                model = Recorder()
                fit(client, model, loader(stream), ckpt_path=place / "last.ckpt", limit_train_batches=limit)
            for epoch, batches in model.trained.items():
                seen[epoch] = seen.get(epoch, []) + batches
            assert seen == {epoch: read(client, "train", epoch, limit) for epoch in range(3)}, (limit, stop, seen)


class Spawned(Recorder):
    """Subscribes in each process, where Lightning has initialized torch.distributed."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        super().__init__()
        self.endpoint, self.folder = endpoint, folder

    def train_dataloader(self) -> Any:
        self.client = streamd.connect(self.endpoint)
        return loader(self.client.subscribe("train", rank="auto"))

    def on_train_end(self) -> None:
        torch.save(self.trained, self.folder / f"{self.global_rank}.pt")
        self.client.close()


def check_spawned_ranks(client: Client, endpoint: str, folder: Path) -> None:
    """Each rank has its part in the same number of steps; a loader made before cannot follow."""
    model = Spawned(endpoint, folder)
    given = {"accelerator": "cpu", "devices": 2, "strategy": "ddp_spawn", "max_epochs": 2, "logger": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    L.Trainer(**given, **quiet).fit(model)
    for rank in range(2):
        trained = torch.load(folder / f"{rank}.pt")
        assert trained == {epoch: read(client, "train", epoch, 4)[rank::2] for epoch in range(2)}
    with client.subscribe("train") as stream:
        with pytest.raises((NoCopyError, NoDatasetError)) as raised:
            L.Trainer(**given, **quiet).fit(Recorder(), loader(stream))
        sys.stderr.write(str(raised.value))


if __name__ == "__main__":
    only = sys.argv[3:]
    with streamd.connect(sys.argv[1]) as client:
        checks: dict[str, Callable[[], None]] = {
            "arguments": lambda: check_arguments(client),
            "anew": lambda: check_loaders_made_anew(client),
            "overfit": lambda: check_overfit(client, Path(sys.argv[2])),
            "resume": lambda: check_resume(client, Path(sys.argv[2])),
            "spawn": lambda: check_spawned_ranks(client, sys.argv[1], Path(sys.argv[2])),
        }
        for name, check in checks.items():
            if not only or name in only:
                check()
                sys.stderr.write(f"checked {name}\n")
