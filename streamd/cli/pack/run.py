"""One run of `streamd pack`: list the samples, decode and write them, finish, read back, put in place.

Nothing is at the pack's place before all of that is done. What is written when a run is cut short is known from the
journal, and the next run goes on behind it.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from streamd.cli.pack import journal as journals
from streamd.cli.pack.batches import Decoding, decoding
from streamd.cli.pack.checksums import Tally
from streamd.cli.pack.config_snippet import kept
from streamd.cli.pack.formats import Format, open_writer
from streamd.cli.pack.journal import Account, Bad, Journal
from streamd.cli.pack.select import batch_rows, in_pack_order, listed
from streamd.cli.pack.workdir import Work, allocated_bytes, full_disk_named, make_sure_of_room
from streamd.cli.pack.writer import Subject, read_otherwise
from streamd.config import Config
from streamd.core.bad_samples import BadSample
from streamd.core.spec import PixelId, compute_identity
from streamd.core.text import escape_unprintable, format_count
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, PackError
from streamd.limits import PACK_AHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be packed and how. `restart` throws away what an earlier run has left."""

    stream: str
    destination: Path
    format: Format
    shuffle: bool = False
    restart: bool = False
    shard_bytes: int | None = None


class Packed(msgspec.Struct, frozen=True):
    """What came of it: the rows of the pack and its bytes; what was left out; times of this run; how it is served."""

    path: str
    format: str
    samples: int
    bad: tuple[Bad, ...]
    bytes: int
    seconds: float
    samples_per_s: float
    verified_s: float
    serving: dict[str, object]


class Progress(Protocol):
    """Who is told how far it has come."""

    def update_listing(self, stream: str, files: int) -> None:
        """So many files of a stream have been listed."""

    def begins(self, samples: int, done: int, row_bytes: int) -> None:
        """So many samples will be packed, of which `done` are already."""

    def packed(self, samples: int) -> None:
        """So many more have been."""

    def verifies(self, rows: int) -> None:
        """All are; so many rows are read back now."""

    def verified(self, rows: int) -> None:
        """So many more have been."""


def pack(config: Config, wish: Wish, progress: Progress) -> Packed:
    """Packs a stream. Raises ConfigError for what cannot be packed, PackError when it has to be given up."""
    _refuse_random(config, wish)
    with Work(wish.destination) as work:
        if wish.restart:
            work.clear()
        begun = journals.read(work.journal) if work.product.exists() else None
        if begun is None:
            work.clear()
        with listed(config, wish.stream, work.folder / "list", progress.update_listing) as stream:
            rows = begun.batch_rows if begun else batch_rows(stream, config.memory)
            ordered = in_pack_order(stream, shuffled=wish.shuffle, batch_rows=rows)
            return _Run(config, wish, work, ordered, progress).run(begun)


def _refuse_random(config: Config, wish: Wish) -> None:
    """Raises ConfigError where one random crop of each sample would be kept for ever."""
    stream = config.streams.get(wish.stream)
    if stream is not None and stream.image.resize == "random_crop" and wish.format != "tar":
        raise ConfigError(
            f"streams.{wish.stream}.image.resize: random_crop takes another part in every epoch, and a pack of decoded "
            "images has one: use --format tar, which keeps the files, or pack a stream of its own with resize: crop"
        )


class _Run:
    """One run, phase by phase."""

    def __init__(self, config: Config, wish: Wish, work: Work, stream: ServedStream, progress: Progress) -> None:
        self._config, self._wish, self._work, self._stream = config, wish, work, stream
        self._progress = progress
        subject = Subject(stream, work.product, work.scratch)
        self._writer = open_writer(wish.format, subject, wish.shard_bytes)

    def run(self, begun: Journal | None) -> Packed:
        try:
            with full_disk_named(self._work, self._writer.expected_bytes):
                account, seconds = asyncio.run(self._decode_and_write(begun))
                if not account.tally.rows:
                    raise PackError(f"{self._stream.spec.name}: all samples are bad, so there is nothing to pack")
                self._writer.finish(account.bad_ids)
            began_s = time.monotonic()
            self._verify(account)
            verified_s = time.monotonic() - began_s
        finally:
            self._writer.close()
        nbytes = allocated_bytes(self._work.product)
        self._work.publish()
        return self._summary(account, nbytes, seconds, verified_s)

    # --- decode and write

    async def _decode_and_write(self, begun: Journal | None) -> tuple[Account, float]:
        workers = min(self._config.worker_count, len(os.sched_getaffinity(0)))
        memory_bytes = min(PACK_AHEAD_BYTES, self._config.memory // 2)
        async with decoding(self._stream, workers, memory_bytes) as batches:
            account = self._go_on(begun, self._identity(await batches.pixel_id()))
            make_sure_of_room(self._work, self._writer.expected_bytes())
            self._progress.begins(self._stream.spec.samples, account.done, self._stream.spec.image.row_bytes)
            began_s = time.monotonic()
            with account.kept_when_cut_short(), ThreadPoolExecutor(1, "writer") as thread:
                await self._write_all(batches, account, thread)
            return account, time.monotonic() - began_s

    async def _write_all(self, batches: Decoding, account: Account, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        batches.begin(account.next_batch)
        while (batch := await batches.next()) is not None:
            await loop.run_in_executor(thread, account.take, batch)
            batches.release(batch)
            self._progress.packed(batch.ids.size + len(batch.bad))
        await loop.run_in_executor(thread, account.save)

    def _identity(self, pixel_id: PixelId) -> str:
        """What decides the bytes of the pack."""
        spec = self._stream.spec
        how = (self._wish.format, str(self._wish.shard_bytes), spec.shuffle, spec.seed)
        return compute_identity("streamd pack 1", *how, spec.content_id, pixel_id, repr(spec.image), spec.bad_policy)

    def _go_on(self, begun: Journal | None, wanted: str) -> Account:
        """Where an earlier run was cut short, or the beginning. Raises PackError when it packed something else."""
        spec = self._stream.spec
        if begun and begun.identity != wanted:
            raise PackError(
                f"{escape_unprintable(str(self._wish.destination))}: a pack was begun of other data, or with "
                "other settings "
                f"({begun.done:,} of {format_count(begun.samples, 'sample')} are in it): add --restart to throw "
                "it away, or "
                "name another place"
            )
        fresh = Journal(identity=wanted, samples=spec.samples, batch_rows=spec.batch_size)
        account = Account(begun or fresh, self._work.journal, self._writer)
        self._stream.quarantine.record_verdicts(BadSample(each.sample_id, each.reason) for each in account.bad)
        return account

    # --- the end

    def _verify(self, account: Account) -> None:
        """Reads all from the disk. Raises PackError unless it is what was written."""
        self._progress.verifies(account.tally.rows)
        found = Tally()
        for sums in self._writer.sums(account.bad_ids):
            found = found.plus(sums)
            self._progress.verified(sums.size)
        if found != account.tally:
            raise read_otherwise(self._wish.destination)

    def _summary(self, account: Account, nbytes: int, seconds: float, verified_s: float) -> Packed:
        packed = account.done - account.begun_at
        return Packed(
            str(self._work.destination),
            self._wish.format,
            account.tally.rows,
            tuple(account.bad),
            nbytes,
            seconds,
            packed / seconds if packed else 0.0,
            verified_s,
            {**self._writer.serving(self._work.destination), **kept(self._config.streams[self._wish.stream])},
        )
