"""Started by torchrun, beside a daemon: one rank of a data-parallel training. Writes what it saw into FOLDER/RANK.json.

torchrun --nproc-per-node 2 ddp_program.py ENDPOINT FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import streamd
from streamd.frameworks.torch import loader, normalization

EPOCHS = 2


def main(endpoint: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    with (
        streamd.connect(endpoint) as client,
        client.subscribe("train", epochs=EPOCHS, rank="auto", world=dist.get_world_size()) as stream,
    ):
        layers = [normalization(stream.spec), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data, levels = loader(stream), list[list[int]]()
        for _ in range(EPOCHS):
            levels.append([])
            for images, labels in data:
                levels[-1] += images[:, 0, 0, 0].tolist()
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    weights = [each.tolist() for each in model.parameters()]
    told = {"levels": levels, "receipts": [[each.dropped, each.ok] for each in stream.receipts], "weights": weights}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
