"""ignite, which goes on where it stopped:  python ignite_engine.py RUN

Start it again after a crash: the loader stands in ignite's checkpoint beside the model, the optimizer and the trainer,
and the result is the same to the bit. RUN/receipts-0.jsonl says which samples each epoch had; `streamd verify` adds up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3


def main(run: Path) -> None:
    """Trains until EPOCHS are done, and saves every ten steps."""
    torch.manual_seed(0)
    run.mkdir(exist_ok=True)
    with streamd.connect() as client, client.subscribe("train") as stream, client.subscribe("validation") as held_back:
        classes = len(stream.spec.labels["label"].classes)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = torch.nn.Sequential(normalization(stream.spec), *layers, torch.nn.Linear(8, classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        data, validation = loader(stream), loader(held_back)
        trainer = create_supervised_trainer(model, optimizer, torch.nn.CrossEntropyLoss())
        evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))
        parts = {"model": model, "optimizer": optimizer, "trainer": trainer, "data": data}
        save = Checkpoint(parts, DiskSaver(run, require_empty=False), filename_pattern="checkpoint.pt")

        # Before the state from which the next epoch follows.
        @trainer.on(Events.ITERATION_COMPLETED(every=10) | Events.COMPLETED)
        def append_receipts() -> None:
            receipts.append_new_receipts(stream.receipts)

        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=10), save)

        @trainer.on(Events.EPOCH_COMPLETED)
        def validate() -> None:
            evaluator.run(validation)
            print(f"epoch {trainer.state.epoch} of {EPOCHS} done: {evaluator.state.metrics}", flush=True)

        if (run / "checkpoint.pt").exists():
            Checkpoint.load_objects(parts, torch.load(run / "checkpoint.pt"))
        trainer.run(data, max_epochs=EPOCHS)
        torch.save(model.state_dict(), run / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
