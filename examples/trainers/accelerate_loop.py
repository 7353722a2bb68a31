"""Accelerate:  python accelerate_loop.py RUN,  or  torchrun --nproc-per-node 2 accelerate_loop.py RUN

Start it again after a crash: it goes on from the newest folder RUN/state-*, and the result is the same to the bit.
RUN/receipts-RANK.jsonl say which samples each epoch had; `streamd verify RUN/receipts-*` adds them up.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3


def main(run: Path) -> None:
    """Trains until EPOCHS are done; saves after every second update, of four batches each, and after each epoch."""
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    set_seed(0)
    run.mkdir(exist_ok=True)
    client = streamd.connect()
    with (
        client,
        client.subscribe("train", rank="auto", epochs=EPOCHS) as stream,
        client.subscribe("validation") as held,
    ):
        classes = len(stream.spec.labels["label"].classes)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = torch.nn.Sequential(
            normalization(stream.spec), *layers, torch.nn.Dropout(), torch.nn.Linear(8, classes)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loaders = [loader(each, device=accelerator.device) for each in (stream, held)]
        model, optimizer, data, validation = accelerator.prepare(model, optimizer, *loaders)
        accelerator.register_for_checkpointing(data)
        receipts, updates = ReceiptFile(receipt_file_path(run, stream.rank)), 0
        for newest in sorted(run.glob("state-*"))[-1:]:
            accelerator.load_state(newest)
            updates = int(newest.name.removeprefix("state-"))

        def save() -> None:
            receipts.append_new_receipts(stream.receipts)  # before the state from which the next epoch follows
            accelerator.save_state(run / "new")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (run / "new").rename(run / f"state-{updates:06}")
                for old in sorted(run.glob("state-*"))[:-2]:
                    shutil.rmtree(old)

        while stream.epoch < EPOCHS:
            for images, labels in data:
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.cross_entropy(model(images), labels))
                    optimizer.step()
                    optimizer.zero_grad()
                updates += accelerator.sync_gradients
                if accelerator.sync_gradients and (updates % 2 == 0 or accelerator.gradient_state.end_of_dataloader):
                    save()
            with torch.no_grad():
                right = torch.cat([model.eval()(images).argmax(1) == labels for images, labels in validation])
            model.train()
            accelerator.print(f"epoch {stream.epoch} of {EPOCHS} done: {right.float().mean():.3f} right", flush=True)
        accelerator.save(accelerator.unwrap_model(model).state_dict(), run / "weights.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
