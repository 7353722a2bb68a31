"""From a configuration to what is to be known of its data. Nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from streamd.cli.check.findings import Findings
from streamd.cli.check.reader_messages import Seen, Told
from streamd.cli.check.reader_pool import COMMAND, Readers
from streamd.cli.check.summary import summed_up
from streamd.cli.check.totals import Tally, chosen, groups
from streamd.config import Config, list_unserved_settings, load_config, locate_errors, locations
from streamd.core.text import escape_unprintable
from streamd.daemon.streams.catalog import list_samples, open_streams


class Progress(Protocol):
    """Who is told how far it has come."""

    def listed(self, stream: str, files: int) -> None:
        """So many files of a stream have been listed."""

    def begins(self, files: int) -> None:
        """So many files will be read."""

    def read(self, files: int) -> None:
        """So many more have been read."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How to look: at `most` files of each stream, evenly spread, or at all of them (None)."""

    most: int | None = None
    command: Sequence[str] = COMMAND


def survey(path: Path, wish: Wish, progress: Progress) -> Findings:
    """Lists, reads and decodes the data of a configuration.

    Raises ConfigError for what `streamd serve` would not start with, StreamdError when nothing can be read.
    """
    config = load_config(path)
    unserved = list_unserved_settings(config)
    served = _without(config, unserved)
    refused = [escape_unprintable(locations.add_locations(sentence, config.key_locations)) for sentence in unserved]
    if not served.streams:
        return Findings(config.memory, config.worker_count, {}, refused=refused)
    with tempfile.TemporaryDirectory(prefix="streamd-check-") as folder:
        with locate_errors(config):
            list_samples(served, Path(folder), progress.listed)
            streams = open_streams(served, Path(folder))
        try:
            tallies = [Tally(stream, chosen(stream.spec.samples, wish.most)) for stream in streams]
            with locate_errors(config):
                processes, notes = asyncio.run(_read(tallies, served, wish, progress))
            return summed_up(tallies, served, processes, refused=refused, notes=notes)
        finally:
            for stream in streams:
                stream.manifest.close()


def _without(config: Config, unserved: Sequence[str]) -> Config:
    """The configuration less the streams that this version does not serve as they are written."""
    kept = {
        name: stream
        for name, stream in config.streams.items()
        if not any(sentence.startswith(f"streams.{name}.") for sentence in unserved)
    }
    return config.model_copy(update={"streams": kept})


async def _read(tallies: Sequence[Tally], config: Config, wish: Wish, progress: Progress) -> tuple[int, list[str]]:
    """Has everything read; how many processes did it, and what remained unclear."""
    progress.begins(sum(tally.ids.size for tally in tallies))

    def hear(seen: Seen) -> None:
        tallies[seen.stream].add(seen)
        progress.read(len(seen.ids))

    streams = [tally.stream for tally in tallies]
    told = [Told(stream.spec, str(stream.manifest_path), stream.transform) for stream in streams]
    work = chain.from_iterable(groups(number, tally.ids) for number, tally in enumerate(tallies))
    readers = Readers(told, work, hear, wish.command)
    processes = min(config.worker_count, len(os.sched_getaffinity(0)))
    await readers.run(processes)
    return processes, readers.notes
