"""Measures what it costs a loop in torch on the CPU that it may write to its batches, also where it only reads them.

    PYTHONPATH=. benchmarks/environments/trainers/bin/python benchmarks/in_place.py [--rounds 9] [--results FILE.json]

Slots are mapped and lent as a client does, without a daemon. Each round takes every way once with each use.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import run
from report import Report, Section, finish, tabulate_rounds

from streamd.core.slot_layout import SlotTensor
from streamd.frameworks.dlpack import export
from streamd.ipc.mapping import build_leased_array, drop_private_pages, map_private, map_readable, map_writable

torch: Any = import_module("torch")

IMAGES: Final = SlotTensor("images", "uint8", (32, 128, 128, 3), 0)
HELD: Final = 8  # slots that there are: as many as a trainer's credit
BATCHES: Final = 200  # a round


class Slots:
    """Slots as a client maps them. Its thread prepares a slot for the next batch, which the loop then takes."""

    def __init__(self) -> None:
        self._descriptors = [os.memfd_create("slot") for _ in range(HELD)]
        for number, descriptor in enumerate(self._descriptors):
            os.ftruncate(descriptor, IMAGES.size_bytes)
            np.frombuffer(map_writable(descriptor, IMAGES.size_bytes), np.uint8)[:] = number
        self._shared = [map_readable(each, IMAGES.size_bytes) for each in self._descriptors]
        self._private = [map_private(each, IMAGES.size_bytes) for each in self._descriptors]

    def show_shared(self, slot: int) -> memoryview:
        return self._shared[slot]

    def show_private(self, slot: int) -> memoryview:
        if not drop_private_pages(self._private[slot]):
            sys.exit("in_place: pages cannot be dropped here")
        return self._private[slot]

    def map_anew(self, slot: int) -> memoryview:
        return map_private(self._descriptors[slot], IMAGES.size_bytes)


def take_alias(memory: memoryview) -> Any:
    return torch.from_dlpack(export(lend(memory)))


def take_copy(memory: memoryview) -> Any:
    return torch.from_numpy(lend(memory).copy())


def lend(memory: memoryview) -> npt.NDArray[np.uint8]:
    return build_leased_array(memory, IMAGES, lambda: None)


def cut_out(images: Any) -> None:
    images[:, :8, :8] = 0


FLOATS: Final = torch.empty(IMAGES.shape)  # without it, the figures would be those of its allocation
USES: Final[dict[str, Callable[[Any], object]]] = {
    "read once, `floats.copy_(images)`": FLOATS.copy_,
    "cutout, `images[:, :8, :8] = 0`": cut_out,
    "all of it, `images.add_(1)`": lambda images: images.add_(1),
}


def measure_way(
    prepare: Callable[[int], memoryview], take: Callable[[memoryview], Any], use: Callable[[Any], object]
) -> tuple[float, float]:
    """Microseconds of processor time a batch, of the loop and of the client's thread."""
    loop_ns, client_ns = 0, 0
    for number in range(-HELD, BATCHES):
        began_ns = time.process_time_ns()
        memory = prepare(number % HELD)
        prepared_ns = time.process_time_ns()
        use(take(memory))
        del memory
        if number >= 0:
            client_ns += prepared_ns - began_ns
            loop_ns += time.process_time_ns() - prepared_ns
    return loop_ns / BATCHES / 1e3, client_ns / BATCHES / 1e3


def main() -> None:
    options = run.build_parser("What it costs that a loop may write to its batches.", "in_place", rounds=9).parse_args()
    torch.set_num_threads(1)
    slots, sections = Slots(), list[Section]()
    ways = {
        "shared and read-only: a write ends the program": (slots.show_shared, take_alias),
        "private, and dropped if it was written: streamd": (slots.show_private, take_alias),
        "private, and mapped anew for each batch": (slots.map_anew, take_alias),
        "shared, and a copy": (slots.show_shared, take_copy),
    }
    for name, use in USES.items():
        allowed = ways if "read" in name else dict(list(ways.items())[1:])
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in allowed}
        for _ in range(options.rounds):
            for way, steps in allowed.items():
                spent[way].append(measure_way(*steps, use))
        first, *others = [(way, [loop for loop, _ in values]) for way, values in spent.items()]
        rows = [(way, values, ",.0f") for way, values in (first, *others)]
        rows += [
            (
                f"{way}, in the time of the first",
                [one / base for one, base in zip(values, first[1], strict=True)],
                ".2f",
            )
            for way, values in others
        ]
        rows += [(f"{way}, the client's thread", [us for _, us in values], ",.0f") for way, values in spent.items()]
        sections.append(Section(f"{name}, µs a batch:", tabulate_rounds(rows)))
    text = f"Processor time to take, use and drop batches of 32 x 128x128x3 of {HELD} slots. Rounds are interleaved."
    command = "python benchmarks/in_place.py"
    finish(Report("In-place work in torch", command, run.machine(), text, tuple(sections)), options.results)


if __name__ == "__main__":
    main()
