"""DDP by torchrun, which goes on where it stopped:  torchrun --standalone --nproc-per-node 2 ddp_torchrun.py RUN

Start it again after a crash, with as many processes as you like: weights, optimizer and position in the data come from
RUN/checkpoint.pt. RUN/receipts-RANK.jsonl say which samples each rank had; `streamd verify` adds them up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3


def main(run: Path) -> None:
    """Trains until EPOCHS are done, and saves every two steps and after each epoch."""
    dist.init_process_group("gloo")  # "nccl", and device="cuda" of the loader, where there are GPUs
    torch.manual_seed(0)
    run.mkdir(exist_ok=True)
    checkpoint = run / "checkpoint.pt"
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS, rank="auto") as stream:
        classes = len(stream.spec.labels["label"].classes)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = torch.nn.Sequential(normalization(stream.spec), *layers, torch.nn.Linear(8, classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        data = loader(stream)
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))
        parts = {"model": model, "optimizer": optimizer, "data": data}
        if checkpoint.exists():
            for name, state in torch.load(checkpoint).items():
                parts[name].load_state_dict(state)
        ranks = DistributedDataParallel(model)

        def save() -> None:
            receipts.append_new_receipts(stream.receipts)  # before the state from which the next epoch follows
            dist.barrier()
            if stream.rank == 0:  # its position is that of all ranks
                torch.save({name: part.state_dict() for name, part in parts.items()}, run / "new.pt")
                (run / "new.pt").replace(checkpoint)

        while stream.epoch < EPOCHS:
            for step, (images, labels) in enumerate(data, 1):
                loss = torch.nn.functional.cross_entropy(ranks(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % 2 == 0:
                    save()
            save()
        if stream.rank == 0:
            torch.save(model.state_dict(), run / "weights.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
