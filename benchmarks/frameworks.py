"""Measures the last step: batches in memory into a framework, and what a client pays for its batches.

    python benchmarks/frameworks.py [--rounds 5] [--data FOLDER] [--results FILE.json]

TensorFlow is measured, and torch and JAX where they are installed. Each round takes every way once, and then a trainer
in a process of its own, which takes 10,000 decoded samples a second from a fresh daemon. Exit status 1 when the client
costs more than was promised.
"""

from __future__ import annotations

import json
import mmap
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import make_data
import numpy as np
import numpy.typing as npt
import run
from report import Bound, Machine, Report, Section, finish, tabulate_rounds

import streamd
import streamd.frameworks.jax
import streamd.frameworks.tensorflow
import streamd.frameworks.torch
from streamd.client import Batch
from streamd.core.slot_layout import SlotTensor
from streamd.ipc.mapping import build_leased_array

Array = npt.NDArray[np.uint8]
Make = Callable[[Iterable[Array]], Iterable[Any]]  # batches become tensors, one by one

IMAGES: Final = SlotTensor("images", "uint8", (32, 128, 128, 3), 0)
HELD: Final = 8  # batches that there are: as many as a trainer's credit
MEASURED_S: Final = 1.0
WARM: Final = 100  # batches before the clock runs
CLOCKED: Final = 50  # batches between two looks at it
PACED: Final = 3000  # batches of the trainer, ten seconds
PACE: Final = 10_000  # samples a second at which a client's cost is told
MOST_OF_CORE: Final = 3.0  # percent that next() and the client's threads may take of a core at that pace


@dataclass(frozen=True, slots=True)
class Client:
    """What one paced trainer paid for a batch, in microseconds of processor time.

    `loop_us` is `next()` and the end of the lease, in the trainer's own thread; `io_us` the client's thread,
    `zmq_us` ZeroMQ's. `rate` is the samples a second that it really took.
    """

    batch: int
    rate: float
    loop_us: float
    io_us: float
    zmq_us: float

    @property
    def total_us(self) -> float:
        return self.loop_us + self.io_us + self.zmq_us

    @property
    def of_core(self) -> float:
        """Of a core, in percent, at PACE."""
        return self.total_us * PACE / self.batch / 1e4


def lent_batches() -> list[Array]:
    """Batches in lent memory, as a stream gives them."""
    lent = []
    for number in range(HELD):
        memory = memoryview(mmap.mmap(-1, IMAGES.size_bytes))
        IMAGES.build_array_in_memory(memory)[:] = number
        lent.append(build_leased_array(memory, IMAGES, lambda: None))
    return lent


def each(make: Callable[[Array], Any]) -> Make:
    """A way that makes one tensor of one batch."""
    return lambda batches: map(make, batches)


def from_generator(batches: Iterable[Array]) -> Iterable[Any]:
    tf = import_module("tensorflow")
    signature = tf.TensorSpec(IMAGES.shape, tf.uint8)
    tensors: Iterable[Any] = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    return tensors


def ways() -> dict[str, Make]:
    """The ways that can be measured here, by the name that the page has for them."""
    tf = import_module("tensorflow")
    found = {
        "TensorFlow: `Dataset.from_generator`": from_generator,
        "TensorFlow: `tf.constant`": each(tf.constant),
        "TensorFlow: `streamd.frameworks.tensorflow.tensor`": each(streamd.frameworks.tensorflow.tensor),
    }
    if find_spec("torch"):
        found["torch: `torch.tensor`"] = each(import_module("torch").tensor)
        found["torch: `streamd.frameworks.torch.tensor`"] = each(streamd.frameworks.torch.tensor)
    if find_spec("jax"):
        numpy = import_module("jax.numpy")
        found["JAX: `jnp.array`"] = each(lambda batch: numpy.array(batch).block_until_ready())
        found["JAX: `streamd.frameworks.jax.array`"] = each(streamd.frameworks.jax.array)
    return found


def measure_way(name: str, make: Make, batches: Sequence[Array]) -> float:
    """Samples a second. Exits when the tensors are not the batches."""
    first = list(islice(make(cycle(batches)), len(batches)))
    if not all(np.array_equal(np.asarray(made), batch) for made, batch in zip(first, batches, strict=True)):
        sys.exit(f"frameworks: {name} does not give the batches")
    del first
    tensors = iter(make(cycle(batches)))
    drop(tensors, WARM)
    started_s, count = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - started_s) < MEASURED_S:
        drop(tensors, CLOCKED)
        count += CLOCKED
    return count * IMAGES.shape[0] / passed_s


def drop(batches: Iterator[Any], count: int) -> None:
    """Takes so many, and holds none."""
    deque(islice(batches, count), maxlen=0)


def client_thread_ns() -> int:
    """Processor time of the client's thread so far."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "streamd-client"]
    return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident or 0))


def clocks_ns() -> npt.NDArray[np.int64]:
    """Processor time so far of the trainer's own thread, of the client's, and of the others, which are ZeroMQ's."""
    whole, own, client = time.process_time_ns(), time.thread_time_ns(), client_thread_ns()
    return np.array([own, client, whole - own - client])


def take_paced(batches: Iterator[Batch], count: int) -> tuple[int, float]:
    """Takes `count` batches at PACE: processor nanoseconds in `next()` and the end of leases, and samples a second."""
    spent_ns, taken, started_s = 0, 0, time.monotonic()
    for _ in range(count):
        before_ns = time.thread_time_ns()
        batch = next(batches)
        taken += len(batch)
        del batch
        spent_ns += time.thread_time_ns() - before_ns
        time.sleep(max(0.0, started_s + taken / PACE - time.monotonic()))
    return spent_ns, taken / (time.monotonic() - started_s)


def be_trainer(endpoint: str) -> Client:
    """Takes batches at PACE, and adds up what that costs."""
    with streamd.connect(endpoint) as client, client.subscribe("train") as stream:
        batches = iter(stream)
        drop(batches, WARM)
        before_ns = clocks_ns()
        loop_ns, rate = take_paced(batches, PACED)
        _, io_ns, zmq_ns = (clocks_ns() - before_ns).tolist()
    loop_us, io_us, zmq_us = (spent_ns / PACED / 1e3 for spent_ns in (loop_ns, io_ns, zmq_ns))
    return Client(stream.spec.batch_size, rate, loop_us, io_us, zmq_us)


def measure_client(array: Path) -> Client:
    """From decoded images, so that the pace is held and no decoder takes part."""
    with run.serve_stream(run.array_stream(array)) as serving:
        answer = run.run_json([sys.executable, __file__, "--trainer", serving.endpoint])
    return Client(**answer)


def measure(array: Path, rounds: int) -> tuple[dict[str, list[float]], list[Client]]:
    """The rate of each way, and a client, a round each."""
    batches, makes = lent_batches(), ways()
    rates: dict[str, list[float]] = {name: [] for name in makes}
    clients: list[Client] = []
    for number in range(1, rounds + 1):
        for name, make in makes.items():
            rates[name].append(measure_way(name, make, batches))
        clients.append(measure_client(array))
        last = clients[-1]
        print(f"round {number}: {last.rate:,.0f} samples/s, {last.total_us:.0f} us a batch", file=sys.stderr)
    return rates, clients


def build_report(machine: Machine, rates: Mapping[str, Sequence[float]], clients: Sequence[Client]) -> Report:
    """Into each framework, then what a client pays for its batches."""
    ways_text = "Batches of 32 x 128x128x3 that lie in memory already, made tensors of and dropped, samples/s:"
    client_text = (
        f"Processor time of a trainer that takes {PACE:,} samples/s from a daemon and does nothing with them. Between "
        "batches it sleeps, as one waits for its step, so that each meets cold caches:"
    )
    costs = tabulate_rounds([
        ("samples/s taken", [each.rate for each in clients], ",.0f"),
        ("`next()` and the end of the lease, µs a batch", [each.loop_us for each in clients], ".0f"),
        ("the client's thread, µs a batch", [each.io_us for each in clients], ".0f"),
        ("ZeroMQ's thread, µs a batch", [each.zmq_us for each in clients], ".0f"),
        (f"of a core at {PACE:,} samples/s, %", [each.of_core for each in clients], ".1f"),
    ])  # fmt: skip
    of_core = statistics.median(each.of_core for each in clients)
    sections = (
        Section(ways_text, tabulate_rounds([(name, values, ",.0f") for name, values in rates.items()])),
        Section(client_text, costs, bounds=(Bound("Percent of a core", of_core, "at most", MOST_OF_CORE, ".1f"),)),
    )
    text = "Rounds are interleaved: compare along a column."
    title, command = "Into the framework, and what a client costs", "python benchmarks/frameworks.py"
    return Report(title, command, machine, text, sections)


def main() -> None:
    parser = run.build_parser("Batches into frameworks, and what a client costs.", "frameworks", rounds=5)
    parser.add_argument("--trainer", metavar="ENDPOINT", help="be the trainer that is measured")
    options = parser.parse_args()
    if options.trainer:
        print(json.dumps(asdict(be_trainer(options.trainer))))
        return
    make_data.make(options.data)
    array = make_data.make_array(options.data)
    rates, clients = measure(array, options.rounds)
    finish(build_report(run.machine(), rates, clients), options.results)


if __name__ == "__main__":
    main()
