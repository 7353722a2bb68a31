"""TensorSocket over torch's DataLoader, whose trainers get a shared tensor's handle and no copy.

Left as its README has it (tensor_socket_plain.py), it pickles every batch once for every trainer, in each broadcast.
`pack_fn` and `unpack_fn`, arguments of its two constructors, are where that can be changed.
"""

from __future__ import annotations

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

SENT = 4  # loader batches in one broadcast; its ring of ten broadcasts then outlasts a trainer's queue of ten batches
BAND = 0.1  # of an epoch: how far trainers may drift apart before one is left out
ABREAST = 16  # batches of warm-up: trainers in lock step have to stop at the same one, or who waits starves the others
LIBRARY = f"tensorsocket {version('tensorsocket')}, torch {version('torch')}, {turbo_image.LIBRARIES}"
SOURCE = "TensorSocket's README, docstrings of TensorProducer and TensorConsumer"
INEXACT = "the producer never sends the last batches of an epoch, and its consumer's loop never ends"
SETTINGS = contest.Settings(
    library=LIBRARY,
    chosen=f"producer over the DataLoader of torch_simplejpeg, producer_batch_size {SENT}, rubber_band_pct {BAND}, "
    "consumers of 32; pack_fn and unpack_fn of our own: shared memory by handle, sharing strategy file_system",
    source=f"{SOURCE}; pytorch.org: multiprocessing, 'Sharing strategies'",
    inexact=INEXACT,
)


def ports(options: contest.Options) -> dict[str, Any]:
    first = int(options.address.split(":")[1])
    return {"port": first, "ack_port": first + 1, "heart_ports": (first + 2, first + 3)}


def produce(options: contest.Options, sent: int, **packing: Any) -> None:
    """What `serve` does, with `sent` loader batches in one broadcast."""
    loader = torch_folder.loader(torch_folder.Folder(options, turbo_image.fill_from), options)
    producer = tensorsocket.TensorProducer(
        loader, **ports(options), producer_batch_size=sent, rubber_band_pct=BAND, **packing
    )
    print("serving", flush=True)
    while True:
        for _ in producer:
            producer.ack_socket.poll(0)  # else its subscription may reach a trainer later than the batch to answer


def subscribe(options: contest.Options, sent: int, **packing: Any) -> contest.Epoch:
    """What `begin` does."""
    consumer = tensorsocket.TensorConsumer(**ports(options), batch_size=contest.BATCH, **packing)
    steps = max(1, len(consumer) - sent)

    def epoch(number: int) -> Iterator[contest.Batch]:
        abreast = number == 0 and options.trainers > 1
        for images, ids in islice(consumer, min(ABREAST, steps) if abreast else steps):
            yield images.numpy(), ids.numpy()

    return epoch


def by_handle(data: tuple[torch.Tensor, ...]) -> bytes:
    return bytes(ForkingPickler.dumps(data))


def serve(options: contest.Options) -> None:
    torch.multiprocessing.set_sharing_strategy("file_system")
    produce(options, SENT, pack_fn=by_handle)


def begin(options: contest.Options) -> contest.Epoch:
    torch.multiprocessing.set_sharing_strategy("file_system")
    return subscribe(options, SENT, unpack_fn=pickle.loads)


if __name__ == "__main__":
    contest.run(begin, settings=SETTINGS, serve=serve)
