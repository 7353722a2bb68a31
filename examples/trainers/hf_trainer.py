"""The Trainer of transformers:  python hf_trainer.py RUN

Start it again after a crash: it goes on from the newest checkpoint that was written to its end, and the result is the
same to the bit. RUN/receipts-0.jsonl says which samples each epoch had; `streamd verify` adds it up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import streamd
from streamd.frameworks.torch import loader, normalization
from streamd.frameworks.transformers import StreamCallback, find_checkpoint

EPOCHS = 3
KEYS = ("pixel_values", "labels")
SMALL = {"image_size": 32, "patch_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


class StreamTrainer(Trainer):
    """Its data sets are loaders of streamd."""

    def get_train_dataloader(self) -> Iterable:
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset: Iterable | None = None) -> Iterable:
        return eval_dataset or self.eval_dataset


class Classifier(torch.nn.Module):
    """A model of transformers, for pixels as the stream has them."""

    def __init__(self, stream: streamd.Stream) -> None:
        super().__init__()
        self.normalization = normalization(stream.spec)
        self.model = ViTForImageClassification(
            ViTConfig(**SMALL, hidden_dropout_prob=0.1, num_labels=len(stream.spec.labels["label"].classes))
        )

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> object:
        return self.model(self.normalization(pixel_values), labels=labels)


def main(run: Path) -> None:
    """Trains until EPOCHS are done; saves every two updates, of four batches each, and evaluates after each epoch."""
    args = TrainingArguments(
        output_dir=str(run),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=8,  # both as the streams have it
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=4,
        save_steps=2,
        save_total_limit=2,
        eval_strategy="epoch",
        report_to="none",
        use_cpu=True,
    )
    client = streamd.connect()
    with client, client.subscribe("train", rank="auto") as stream, client.subscribe("validation") as held_back:
        set_seed(0)
        model = Classifier(stream)
        data = {"train_dataset": loader(stream, keys=KEYS), "eval_dataset": loader(held_back, keys=KEYS)}
        trainer = StreamTrainer(model, args, callbacks=[StreamCallback()], **data)
        trainer.train(resume_from_checkpoint=find_checkpoint(run))
        torch.save(model.state_dict(), run / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
