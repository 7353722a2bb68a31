"""Ray Train:  python ray_train.py RUN

Two workers share each epoch. A worker that dies lets Ray start them all again, and they go on from the last checkpoint
that was reported, as the program does when it is started again. `streamd verify RUN/receipts-*` adds the receipts up.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3


def train(config: dict[str, str]) -> None:
    """Runs in each worker: Ray has initialized torch.distributed there, which says the rank."""
    torch.manual_seed(0)
    run = Path(config["run"])
    client = streamd.connect(config["endpoint"])
    with client, client.subscribe("train", rank="auto", epochs=EPOCHS) as stream:
        # Not len(classes): Ray pickles this function, and takes that name for torch.classes, which cannot be pickled.
        classes = len(stream.spec.labels["label"].counts)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = prepare_model(torch.nn.Sequential(normalization(stream.spec), *layers, torch.nn.Linear(8, classes)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        data = loader(stream, device=ray.train.torch.get_device())
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))
        parts = {"model": model, "optimizer": optimizer, "data": data}
        if saved := ray.train.get_checkpoint():
            with saved.as_directory() as folder:
                for name, state in torch.load(Path(folder) / "state.pt").items():
                    parts[name].load_state_dict(state)
        while stream.epoch < EPOCHS:
            for images, labels in data:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            receipts.append_new_receipts(stream.receipts)
            with tempfile.TemporaryDirectory() as folder:
                if stream.rank == 0:
                    torch.save({name: part.state_dict() for name, part in parts.items()}, Path(folder) / "state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder) if stream.rank == 0 else None
                ray.train.report({"loss": loss.item()}, checkpoint=checkpoint)
        if stream.rank == 0:
            torch.save(model.module.state_dict(), run / "weights.pt")


def main(run: Path) -> None:
    """Runs two workers until they have done EPOCHS, and goes on where an earlier start of it stopped."""
    run.mkdir(exist_ok=True)
    trainer = TorchTrainer(
        train,
        train_loop_config={"run": str(run), "endpoint": os.environ["STREAMD_ENDPOINT"]},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig("run", str(run), failure_config=ray.train.FailureConfig(max_failures=3)),
    )
    trainer.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
