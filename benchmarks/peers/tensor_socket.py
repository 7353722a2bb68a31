"""TensorSocket over torch's DataLoader: one producer, and a copy-free way for its batches to the trainers.

Left as its README has it, every batch is pickled once for every trainer, in each broadcast. `pack_fn` and `unpack_fn`,
arguments of its two constructors, are where it can be tuned: here they send a shared tensor's handle instead.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

import contest
import tensorsocket
import torch
import torch_folder
import turbo_image

RUBBER_BAND = 0.1  # of an epoch: how far trainers may drift apart before one is left out
ABREAST = 16  # batches of warm-up: trainers in lock step have to stop at the same one, or who waits starves the others
PRODUCER_BATCH = 8  # loader batches that are sent as one; TensorSocket's default
SETTINGS = contest.Settings(
    library=f"tensorsocket {version('tensorsocket')}, torch {version('torch')}, simplejpeg {version('simplejpeg')}",
    chosen=f"producer over the DataLoader of torch_simplejpeg; producer_batch_size {PRODUCER_BATCH}, "
    f"rubber_band_pct {RUBBER_BAND}, consumers of 32; "
    "pack_fn and unpack_fn that pass shared memory by handle (sharing strategy file_system), where the default pickles",
    source="TensorSocket's README and docstrings; pytorch.org: multiprocessing, 'Sharing strategies'",
    inexact="the producer never sends the last batches of an epoch, and its consumer's loop never ends",
)


def ports(options: contest.Options) -> dict[str, Any]:
    first = int(options.address.split(":")[1])
    return {"port": first, "ack_port": first + 1, "heart_ports": (first + 2, first + 3)}


def by_handle(data: tuple[torch.Tensor, ...]) -> bytes:
    return bytes(ForkingPickler.dumps(data))


def serve(options: contest.Options) -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")
    loader = torch_folder.loader(torch_folder.Folder(options, turbo_image.fill_from), options)
    producer = tensorsocket.TensorProducer(
        loader, **ports(options), pack_fn=by_handle, producer_batch_size=PRODUCER_BATCH, rubber_band_pct=RUBBER_BAND
    )
    print("serving", flush=True)
    while True:
        for _ in producer:
            producer.ack_socket.poll(
                0
            )  # else its subscription may reach a trainer later than the first batch to answer


def begin(options: contest.Options) -> contest.Epoch:
    torch.multiprocessing.set_sharing_strategy("file_system")
    consumer = tensorsocket.TensorConsumer(**ports(options), unpack_fn=pickle.loads, batch_size=contest.BATCH)
    steps = len(consumer) - PRODUCER_BATCH

    def epoch(number: int) -> Iterator[contest.Batch]:
        abreast = number == 0 and options.trainers > 1
        for images, ids in islice(consumer, ABREAST if abreast else steps):
            yield images.numpy(), ids.numpy()

    return epoch


if __name__ == "__main__":
    logging.disable(logging.INFO)
    contest.run(begin, settings=SETTINGS, serve=serve)
