"""What Accelerate and the Trainer of transformers do with a loader:  python hugging_face_program.py FOLDER

Prints a JSON object with what each function below found, by its name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import GradientState
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

import streamd
from streamd.client import Client
from streamd.errors import StreamdError
from streamd.frameworks.torch import Loader, loader
from streamd.frameworks.transformers import StreamCallback, find_checkpoint

KEYS: Final = ("pixel_values", "labels")


def list_updates(accelerator: Accelerator, steps: Any, evaluate: Callable[[], object]) -> list[int]:
    """After which steps of two epochs of a loop gradients are applied."""
    updates = []
    for number in (0, len(steps)):
        for step, _ in enumerate(steps, number):
            with accelerator.accumulate():
                if accelerator.sync_gradients:
                    updates.append(step)
            evaluate()
    return updates


def accumulation(client: Client, _: Path) -> Any:
    """Updates of a DataLoader of torch, of ours, and of ours with others read in between and left early."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    with client.subscribe("train") as stream, client.subscribe("validation") as held_back:
        theirs, rows = accelerator.prepare(DataLoader(list(range(len(stream)))), DataLoader([1, 2]))
        ours, validation = accelerator.prepare(loader(stream), loader(held_back))
        found = [
            list_updates(accelerator, theirs, lambda: None),
            list_updates(accelerator, ours, lambda: None),
            list_updates(accelerator, ours, lambda: [*islice(validation, 1), *rows]),
            list_updates(accelerator, theirs, lambda: list(validation)),
        ]
        return {"all equal": all(each == found[0] for each in found), "updates": found[0]}


def gathered_rows(client: Client, _: Path) -> Any:
    """How many rows of each step of a validation gather_for_metrics gives, and whether a loop leaves nothing behind."""
    accelerator = Accelerator(cpu=True)
    with client.subscribe("validation") as stream:
        rows = [len(accelerator.gather_for_metrics(labels)) for _, labels in accelerator.prepare(loader(stream))]
        return {"rows": rows, "samples": stream.spec.samples, "left": GradientState().in_dataloader}


def skipping(client: Client, folder: Path) -> Any:
    """What skip_first_batches makes of a loader that was restored, was not, and of too few steps."""
    accelerator = Accelerator(cpu=True)
    with client.subscribe("train") as stream, client.subscribe("train") as other:
        data, again = loader(stream), loader(other)
        accelerator.register_for_checkpointing(data)
        for _ in islice(data, 3):
            pass
        accelerator.save_state(folder / "state")
        wanted = [labels.tolist() for _, labels in data]
        accelerator.load_state(folder / "state")
        rest = [labels.tolist() for _, labels in skip_first_batches(data, 3)]
        accelerator.load_state(folder / "state")
        few = error_of(lambda: [labels for _, labels in skip_first_batches(data, 2)])
        return [rest == wanted, few, error_of(lambda: skip_first_batches(again, 3))]


def error_of(call: Callable[[], object]) -> str:
    """What a call was refused with."""
    try:
        call()
    except StreamdError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# --- the Trainer


class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Learns with a dropout, so that the state of random numbers counts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(48, 2)
        )

    def forward(self, pixel_values: Any, labels: Any = None) -> Any:
        logits = self.layers(pixel_values / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class StreamTrainer(Trainer):  # type: ignore[misc]  # nor is transformers
    def get_train_dataloader(self) -> Any:
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return eval_dataset or self.eval_dataset


class Recorder(TrainerCallback):  # type: ignore[misc]  # nor is transformers
    """Notes after which steps of the data the weights changed, and ends a training as a crash would."""

    def __init__(self, data: Loader, crash_at: int) -> None:
        self.data, self.crash_at, self.updates = data, crash_at, list[list[int]]()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the Trainer's
        self.updates.append([self.data.stream.epoch, self.data.steps_done])
        if state.global_step == self.crash_at:
            raise KeyboardInterrupt


@contextmanager
def training(client: Client, folder: Path, *, crash_at: int = 0, callback: bool = True, **given: Any) -> Iterator[Any]:
    """A Trainer whose stream and receipts are its own."""
    arguments = {
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 4,
        "save_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
        **given,
    }
    with client.subscribe("train") as stream, client.subscribe("validation") as held_back:
        data = loader(stream, keys=KEYS)
        callbacks = [StreamCallback()] if callback else []
        yield StreamTrainer(
            Model(),
            TrainingArguments(output_dir=str(folder), **arguments),
            train_dataset=data,
            eval_dataset=loader(held_back, keys=KEYS),
            callbacks=[*callbacks, Recorder(data, crash_at)],
        )


def train(client: Client, folder: Path, **given: Any) -> Any:
    """Trains from the newest checkpoint, if there is one; returns the last weights and where they changed."""
    with training(client, folder, **given) as trainer:
        with suppress(KeyboardInterrupt):
            trainer.train(resume_from_checkpoint=find_checkpoint(folder))
        recorder = next(each for each in trainer.callback_handler.callbacks if isinstance(each, Recorder))
        return [{name: part.tolist() for name, part in trainer.model.state_dict().items()}, recorder.updates]


def trainer_resumes(client: Client, folder: Path) -> Any:
    """Whether a training that ended at each of its updates goes on to the weights of a whole one."""
    whole, updates = train(client, folder / "whole")
    equal = {}
    settings_by_crash: dict[int, dict[str, Any]] = {
        3: {"save_steps": 1},
        4: {"restore_callback_states_from_checkpoint": True},
        5: {"save_strategy": "epoch"},
        2: {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 1},
    }
    for crash_at, settings in settings_by_crash.items():
        train(client, folder / f"{crash_at}", crash_at=crash_at, **settings)
        weights, _ = train(client, folder / f"{crash_at}", **settings)
        equal[crash_at] = weights == whole
    return {"updates": updates, "equal": equal}


def trainer_without_callback(client: Client, folder: Path) -> Any:
    """What a resume says within an epoch without the callback, and with one that the checkpoint does not know."""
    train(client, folder, crash_at=5, callback=False)
    return [error_of(lambda: train(client, folder, callback=False)), error_of(lambda: train(client, folder))]


def trainer_with_other_steps(client: Client, folder: Path) -> Any:
    """What a resume says to another accumulation, and to ignore_data_skip."""
    train(client, folder, crash_at=3)
    other = error_of(lambda: train(client, folder, gradient_accumulation_steps=3))
    return [other, error_of(lambda: train(client, folder, ignore_data_skip=True))]


def evaluation(client: Client, folder: Path) -> Any:
    """The mean loss of a validation as the Trainer and as we compute it, and what it says to another batch size."""
    with training(client, folder) as trainer:
        model, losses = trainer.model.eval(), []
        for step in trainer.eval_dataset:
            with torch.no_grad():
                logits = model(**step)["logits"]
            losses += torch.nn.functional.cross_entropy(logits, step["labels"], reduction="none").tolist()
        computed = [trainer.evaluate()["eval_loss"] for _ in range(2)]
    with training(client, folder, per_device_eval_batch_size=4) as trainer:
        told = error_of(trainer.evaluate)
    mean = sum(losses) / len(losses)
    return [[abs(each - mean) < 1e-6 for each in computed], told]


CHECKS: Final = (
    accumulation,
    gathered_rows,
    skipping,
    evaluation,
    trainer_resumes,
    trainer_without_callback,
    trainer_with_other_steps,
)


def main(folder: Path) -> None:
    with streamd.connect() as client:
        found = {each.__name__: each(client, folder / each.__name__) for each in CHECKS}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
