"""Data-parallel training in torch on many hosts, each with a daemon of its own.

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr HOST --master-port 29500 train_torch.py RUN

Run it on every host with its own --node-rank, beside `streamd serve` with the same configuration. Each rank takes its
share of the batches from the daemon of its own host; only gradients cross the network. RUN/receipts-RANK.jsonl gets the
receipts, which `streamd verify` adds up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import streamd
from streamd.core.spec import StreamSpec
from streamd.frameworks.receipt_file import ReceiptFile, receipt_file_path
from streamd.frameworks.torch import loader, normalization

EPOCHS = 2


def build_model(spec: StreamSpec) -> torch.nn.Module:
    """A small network for the stream's images and classes."""
    classes = len(spec.labels["label"].classes)
    layers = [torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return DistributedDataParallel(torch.nn.Sequential(normalization(spec), *layers, torch.nn.Linear(8, classes)))


def main(run: Path) -> None:
    """Trains as one of the ranks that torchrun has started."""
    dist.init_process_group("gloo")  # "nccl" with GPUs
    with streamd.connect() as client, client.subscribe("train", epochs=EPOCHS, rank="auto") as stream:
        model = build_model(stream.spec)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        receipts = ReceiptFile(receipt_file_path(run, stream.rank))
        data = loader(stream)
        for epoch in range(EPOCHS):
            for images, labels in data:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
            receipts.append_new_receipts(stream.receipts)
            print(f"rank {stream.rank} of {stream.world}, epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
