"""Streams for the Trainer of transformers: its checkpoints hold the position in the data, and go on there.

    class StreamTrainer(Trainer):
        def get_train_dataloader(self):
            return self.train_dataset

        def get_eval_dataloader(self, eval_dataset=None):
            return eval_dataset or self.eval_dataset

    data = loader(stream, keys=("pixel_values", "labels"))  # of streamd.frameworks.torch
    trainer = StreamTrainer(model, args, train_dataset=data, callbacks=[StreamCallback()])
    trainer.train(resume_from_checkpoint=find_checkpoint(args.output_dir))

transformers is imported when `StreamCallback` is, not with this module.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamd.errors import ConfigError
from streamd.frameworks import import_library
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import Loader

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["StreamCallback", "find_checkpoint"]

_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")
_STATE: Final = "trainer_state.json"  # the file that a Trainer writes last


def find_checkpoint(output_dir: str | PathLike[str]) -> str | None:
    """Returns the newest checkpoint in `output_dir` that was written to its end, None if there is none.

    `resume_from_checkpoint=True` takes the newest one also if the Trainer was killed while it wrote that.
    """
    found = [(_CHECKPOINT.fullmatch(path.name), path) for path in Path(output_dir).glob("*")]
    folders = [(int(match[1]), path) for match, path in found if match]
    for _, folder in sorted(folders, reverse=True):
        try:
            json.loads((folder / _STATE).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue
        return str(folder)
    return None


class _PositionKeeper:
    """What `StreamCallback` does at the events of a Trainer.

    It takes no arguments, since a Trainer may make it anew from a checkpoint: the loader comes with each event.
    """

    def __init__(self) -> None:
        self._data: Loader | None = None
        self._receipts: ReceiptFile | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - the Trainer's
        """Moves the loader to the position of the checkpoint from which the Trainer resumes."""
        data = others["train_dataloader"]
        if not isinstance(data, Loader):
            raise ConfigError(
                f"the Trainer trains on a {type(data).__name__}, and StreamCallback keeps the position of a loader of "
                "streamd.frameworks.torch: let get_train_dataloader return that itself"
            )
        self._data = data
        if self._receipts is None:
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            self._receipts = ReceiptFile(receipt_file_path(Path(args.output_dir), data.stream.rank))
        if not state.global_step:
            return
        saved = state.stateful_callbacks.get("StreamCallback", {}).get("attributes")
        if not saved:
            raise ConfigError(
                f"the checkpoint of step {state.global_step} has no position in the data: it was saved without "
                "callbacks=[StreamCallback()]; resume from one that has it, or begin anew"
            )
        data.load_state_dict(saved)
        # The Trainer counts steps of its present settings, and has to skip as many as were handed out.
        accumulated = args.gradient_accumulation_steps
        done = state.global_step % max(1, -(-len(data) // accumulated)) * accumulated
        if done != data.steps_done:
            raise ConfigError(
                f"the Trainer would go on after step {done} of an epoch of {len(data)}, and the checkpoint is after "
                f"step {data.steps_done}: resume with the number of processes, the batch size and the "
                "gradient_accumulation_steps with which it was saved, or from a checkpoint at the end of an epoch"
            )
        if done and args.ignore_data_skip and accumulated > 1:
            raise ConfigError(
                "with ignore_data_skip a Trainer drops the last, shorter accumulation of an epoch that it resumes: "
                "leave it out; StreamCallback lets the loader go on without reading anything twice"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - the Trainer's
        """Writes receipts before the Trainer saves, in every rank."""
        if control.should_save:
            self._append_receipts()

    on_epoch_end = on_step_end

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - see above
        """Refuses a batch size with which the Trainer would weigh the loss of a last, shorter batch wrongly."""
        data = others.get("eval_dataloader")
        if isinstance(data, Loader) and args.eval_batch_size != data.stream.spec.batch_size:
            raise ConfigError(
                f"stream {data.stream.spec.name!r} has batches of {data.stream.spec.batch_size}, and the Trainer takes "
                f"{args.eval_batch_size} to compute eval_loss: write  "
                f"per_device_eval_batch_size={data.stream.spec.batch_size}  in its arguments"
            )

    def state(self) -> dict[str, Any]:
        """Returns what the Trainer puts into each checkpoint: the position after the last step that it took."""
        self._append_receipts()
        return {"args": {}, "attributes": {} if self._data is None else self._data.state_dict()}

    def _append_receipts(self, *_: Any, **__: Any) -> None:
        if self._data is not None and self._receipts is not None:
            self._receipts.append_new_receipts(self._data.stream.receipts)

    on_train_end = _append_receipts


if TYPE_CHECKING:

    class StreamCallback(_PositionKeeper): ...


def __getattr__(name: str) -> Any:
    """Imports transformers only when the callback is accessed, since it is a subclass of a class of transformers."""
    if name == "StreamCallback":
        return _build_callback_type()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _build_callback_type() -> type:
    callbacks = import_library("transformers.trainer_callback", "torch", "training with transformers")
    described = {
        "__module__": __name__,
        "__doc__": """Saves the position in the data in each checkpoint of a Trainer, and goes on there.

    The loader is what `get_train_dataloader` returns. Weights, optimizer and data are then those of a training that was
    not interrupted, also within an epoch and within an epoch's last, shorter accumulation. Receipts are appended to
    OUTPUT_DIR/receipts-RANK.jsonl. Raises ConfigError for a checkpoint without a position, and for one that the
    Trainer would read at another step, as after a change of the number of processes.
    """,
    }
    return type("StreamCallback", (_PositionKeeper, callbacks.TrainerCallback, callbacks.ExportableState), described)
