"""DDP by torch.multiprocessing.spawn:  python ddp_spawn.py RUN

Each process connects by itself, after init_process_group, from which rank="auto" knows its rank.
RUN/receipts-RANK.jsonl say which samples each rank had; `streamd verify` adds them up. After a crash this program
begins again; ddp_torchrun.py goes on.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import streamd
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 3
WORLD = 2


def train(rank: int, run: Path, meeting: str) -> None:
    """Trains in one of WORLD processes."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS, rank="auto") as stream:
        classes = len(stream.spec.labels["label"].classes)
        layers = [torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = torch.nn.Sequential(normalization(stream.spec), *layers, torch.nn.Linear(8, classes))
        ranks = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        data = loader(stream)
        for _ in range(EPOCHS):
            for images, labels in data:
                loss = torch.nn.functional.cross_entropy(ranks(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        ReceiptFile(receipt_file_path(run, stream.rank)).append_new_receipts(stream.receipts)
        if stream.rank == 0:
            torch.save(model.state_dict(), run / "weights.pt")
    dist.destroy_process_group()


def main(run: Path) -> None:
    run.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (run, f"{folder}/meeting"), WORLD)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
