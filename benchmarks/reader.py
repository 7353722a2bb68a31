"""A trainer that does nothing with its batches, for benchmarks that stop it or take its daemon away.

    python benchmarks/reader.py ENDPOINT begin|live

subscribes to `train` for ever, prints a line, waits for one, and reads as fast as it can. It prints the first batch of
every connection and then one in 25, each as `nanoseconds (monotonic)  batches so far  reconnects`.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Self

import streamd

EVERY: Final = 25  # batches; seldom enough to cost nothing
WORD_S: Final = 60.0  # far longer than any start or pause


@dataclass(frozen=True, slots=True)
class Word:
    """What reader number `reader` printed: the time of a batch, its number since the start, and of which connection."""

    reader: int
    at_ns: int
    batches: int
    reconnects: int


class Readers:
    """Readers in processes of their own, subscribed and not reading yet, and one queue of what they say.

    As a context they are gone at the end.
    """

    def __init__(self, endpoint: str, count: int, start: Literal["begin", "live"] = "begin") -> None:
        command = [sys.executable, __file__, endpoint, start]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        for process in self.processes:
            if process.stdout is None or process.stdout.readline() != "subscribed\n":
                sys.exit(f"reader: process {process.pid} did not subscribe; its message is above")
        self._words: queue.SimpleQueue[Word] = queue.SimpleQueue()

    def begin(self) -> None:
        """Lets them read."""
        for number, process in enumerate(self.processes):
            if process.stdin is not None:
                process.stdin.write("\n")
                process.stdin.flush()
            threading.Thread(target=self._listen, args=(number, process), daemon=True).start()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                at_ns, batches, reconnects = map(int, line.split())
                self._words.put(Word(number, at_ns, batches, reconnects))

    def wait_each(self, condition: Callable[[Word], bool]) -> list[Word]:
        """Each reader's first word from now on that meets the condition. Exits when one says nothing for a minute."""
        found: dict[int, Word] = {}
        while len(found) < len(self.processes):
            try:
                word = self._words.get(timeout=WORD_S)
            except queue.Empty:
                sys.exit(f"reader: a trainer hangs: in {WORD_S:g} s only {sorted(found)} came so far")
            if word.reader not in found and condition(word):
                found[word.reader] = word
        return [found[number] for number in range(len(self.processes))]

    def rates(self, window_s: float) -> tuple[float, ...]:
        """Batches a second of each, from its first word within so many seconds from now to its last."""
        begin_ns = time.monotonic_ns()
        end_ns = begin_ns + round(window_s * 1e9)
        heard: dict[int, list[Word]] = {number: [] for number in range(len(self.processes))}
        while (left_s := (end_ns - time.monotonic_ns()) / 1e9) > 0:
            with suppress(queue.Empty):
                word = self._words.get(timeout=left_s)
                if word.at_ns >= begin_ns:
                    heard[word.reader].append(word)
        if any(len(words) < 2 for words in heard.values()):  # noqa: PLR2004 - a rate is between two
            sys.exit(f"reader: a trainer takes less than {2 * EVERY} batches in {window_s:g} s")
        ends = ((words[0], words[-1]) for words in heard.values())
        return tuple((last.batches - first.batches) / (last.at_ns - first.at_ns) * 1e9 for first, last in ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()  # a stopped one, too
            process.communicate()


def main() -> None:
    endpoint, start = sys.argv[1:]
    with (
        streamd.connect(endpoint) as client,
        client.subscribe("train", start="live" if start == "live" else "begin") as stream,
    ):
        print("subscribed", flush=True)
        sys.stdin.readline()
        told = -1
        for batches, _ in enumerate(stream, 1):
            if stream.reconnects != told or batches % EVERY == 0:
                told = stream.reconnects
                print(time.monotonic_ns(), batches, told, flush=True)


if __name__ == "__main__":
    main()
