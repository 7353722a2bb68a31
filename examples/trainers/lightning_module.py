"""Lightning, which goes on where it stopped:  python lightning_module.py RUN

Start it again after a crash: Lightning's checkpoint has the position in the data, since the loader is stateful, and the
result is the same to the bit. RUN/receipts-0.jsonl says which samples each epoch had; `streamd verify` adds it up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import streamd
from streamd.client import Stream
from streamd.frameworks.torch import loader, normalization
from streamd.frameworks.torch.lightning import ReceiptCallback

EPOCHS = 3


class Classifier(lightning.LightningModule):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        classes = len(stream.spec.labels["label"].classes)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        self.layers = torch.nn.Sequential(normalization(stream.spec), *layers, torch.nn.Linear(8, classes))

    def training_step(self, batch: Any, _: int) -> Any:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        images, labels = batch
        self.log("right", (self.layers(images).argmax(1) == labels).float().mean(), batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main(run: Path) -> None:
    """Trains until EPOCHS are done, and saves every ten steps."""
    lightning.seed_everything(0)
    with streamd.connect() as client, client.subscribe("train") as stream, client.subscribe("validation") as held_back:
        model = Classifier(stream)
        saving = ModelCheckpoint(run, "last", every_n_train_steps=10, enable_version_counter=False)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", callbacks=[saving, ReceiptCallback(run)], **quiet
        )
        trainer.fit(model, loader(stream), loader(held_back), ckpt_path="last")
        torch.save(model.state_dict(), run / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
