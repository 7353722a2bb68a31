"""What is compared with what: the loaders, the sets of data, and the cells of a round. No I/O.

A cell is one measurement: a set, a loader, so many trainers at once, so many workers. Its key names it in the results:
`s/tf_data/4`, or `s/streamd/1/workers=1` where workers are not as many as cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import run

SETS: Final = {
    "s": "20,000 JPEGs of 128x128",
    "l": "4,000 JPEGs of 500x375, made 128x128",
    "decoded": "the 20,000 images of 128x128 as decoded pixels",
}
DATA: Final = {"s": "s", "l": "l", "decoded": "s.npy"}  # below the folder of the data
COLOURS: Final = {"s": "s.colours.npy", "l": "l.colours.npy", "decoded": "s.colours.npy"}
LIMIT: Final = "limit"
LIMITS: Final = {
    "s": "the limit: processes that read and decode, and nothing else",
    "l": "the limit: processes that read and decode, and nothing else",
    "decoded": "the limit: one core that copies batches, and nothing else",
}
LIMIT_ROWS: Final = {"s": 128, "l": 192}  # pixels, see limit.py
TOGETHER: Final = (2, 4)  # trainers at once that the other loaders are measured with
SWEEP: Final = (1, 2, 4)  # workers
SWEPT: Final = (LIMIT, "streamd", "torch_simplejpeg")


@dataclass(frozen=True, slots=True)
class Peer:
    """A loader, a file in peers/. `environment` is None for the Python that runs the comparison."""

    name: str
    title: str
    environment: str | None
    sets: tuple[str, ...]
    together: tuple[str, ...] = ()  # sets that several trainers take at once
    shared: bool = False  # several trainers share what its `serve` has started
    file: str = ""
    data: dict[str, str] = field(default_factory=dict)  # where it takes other data than the others

    @property
    def module(self) -> str:
        return self.file or self.name

    @property
    def is_streamd(self) -> bool:
        return self.module == "streamd_"

    def data_of(self, of: str) -> str:
        return self.data.get(of, DATA[of])


FILES: Final = ("s", "l")
PEERS: Final = (
    Peer("streamd", "**streamd**", None, ("s", "l", "decoded"), ("s", "decoded"), file="streamd_"),
    Peer(
        "streamd_cache",
        "**streamd**, the JPEGs and its decoded cache",
        None,
        ("decoded",),
        ("decoded",),
        file="streamd_",
        data={"decoded": "s"},
    ),
    Peer("torch_simplejpeg", "torch DataLoader, simplejpeg", "torch", FILES, ("s",)),
    Peer("keras_directory", "Keras `image_dataset_from_directory`", "tensorflow", FILES, ("s",)),
    Peer("tf_data", "tf.data, AUTOTUNE, fast DCT", "tensorflow", FILES, ("s",)),
    Peer("torch_pillow", "torch DataLoader, Pillow", "torch", FILES),
    Peer("naive", "the naive generator: Pillow in the training loop", None, FILES),
    Peer("queue_loader", "producer processes and a queue", "plain", FILES),
    Peer("webdataset_shards", "WebDataset", "webdataset", FILES),
    Peer("spdl_threads", "SPDL", "spdl", FILES),
    Peer("grain_loader", "Grain", "grain", FILES),
    Peer("tf_service", "tf.data service, cross-trainer cache", "tensorflow", ("s",), ("s",), shared=True),
    Peer("tensor_socket", "TensorSocket, tensors passed by handle", "tensorsocket", ("s",), ("s",), shared=True),
    Peer("tensor_socket_plain", "TensorSocket, as its README has it", "tensorsocket", ("s",), ("s",), shared=True),
    Peer("memmap", "NumPy memmap, gathered in the trainer", None, ("decoded",), ("decoded",)),
    Peer("tf_memory", "tf.data from an array in memory", "tensorflow", ("decoded",)),
    Peer("pytables_chunks", "PyTables EArray, chunks of 100 batches", "pytables", ("decoded",)),
    Peer("torch_memmap", "torch DataLoader over a memmap", "torch", ("decoded",)),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement. `peer` is a peer's name, or `limit`; `workers` is None for as many as cores."""

    set: str
    peer: str
    trainers: int = 1
    workers: int | None = None

    @property
    def key(self) -> str:
        return f"{self.set}/{self.peer}/{self.trainers}" + (f"/workers={self.workers}" if self.workers else "")


def stream(peer: Peer, of: str, folder: Path) -> dict[str, Any]:
    """streamd's stream for a set whose data lies in `folder`."""
    data = folder / peer.data_of(of)
    if data.suffix == ".npy":
        arrays = {"source": {"kind": "npy", "path": str(data)}, "labels": {}, "image": {"size": "stored"}}
        return {**run.STREAM, **arrays}
    cache = {"path": str(data.with_suffix(".cache")), "max": "4GiB"}
    return run.folder_stream(data) | ({"cache": cache} if peer.name == "streamd_cache" else {})


def cells(sets: Sequence[str], peers: Sequence[Peer], trainers: Sequence[int], sweep: Sequence[int]) -> list[Cell]:
    """The cells of a round, what is compared closely side by side: set by set, the limit, streamd, then the others."""
    found: list[Cell] = []
    for of in sets:
        found.append(Cell(of, LIMIT))
        for peer in peers:
            found += [Cell(of, peer.name, count) for count in trainers if _takes_part(peer, of, count)]
    if "s" in sets:
        swept = [name for name in SWEPT if name == LIMIT or name in {peer.name for peer in peers}]
        found += [Cell("s", name, 1, workers) for workers in sweep for name in swept]
    return found


def _takes_part(peer: Peer, of: str, trainers: int) -> bool:
    if trainers == 1:
        return of in peer.sets
    return of in peer.together and (peer.is_streamd or trainers in TOGETHER)


def rotated(round_: Sequence[Cell], number: int, rounds: int) -> list[Cell]:
    """The order of round `number` (from 0): each begins elsewhere, so that no cell always follows the same hour."""
    first = number * len(round_) // max(rounds, 1) % max(len(round_), 1)
    return [*round_[first:], *round_[:first]]
