"""One run of `streamd pack`: list the samples, decode and write them, finish, read back, put in place.

Nothing exists at the destination before all phases are done. The journal records the whole shards that an interrupted
run has left, and the next run continues after them. A pack of one file begins again.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from streamd.cli.pack.batches import (
    PackChecksum,
    PackJob,
    PackWriter,
    build_packing_stream,
    build_read_mismatch_error,
    compute_pack_batch_rows,
    list_and_open_stream,
    open_batch_decoder,
)
from streamd.cli.pack.label_cells import collect_kept_settings
from streamd.cli.pack.workdir import (
    JournaledPack,
    LeftOutSample,
    PackJournal,
    PackWorkdir,
    check_free_space,
    measure_allocated_bytes,
    read_journal,
    translate_disk_full_error,
)
from streamd.cli.terminal.progress import Phase, SilentProgress
from streamd.config.schema import Config
from streamd.core.bad_samples import BadSample
from streamd.core.host import count_processors
from streamd.core.spec import ONLY_IMAGE, PixelId, StreamSpec, compute_identity
from streamd.core.text import escape_unprintable, format_count
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, PackError
from streamd.limits import MIB, PACK_AHEAD_BYTES, PACK_SHARD_BYTES, PACK_TAR_BYTES

PackFormat = Literal["npy", "tar", "hdf5", "lmdb"]
_SINGLE_FILE_FORMATS: Final = frozenset({"hdf5", "lmdb"})
PACK_FORMATS: Final[tuple[PackFormat, ...]] = ("npy", "tar", "hdf5", "lmdb")
# A pack that was begun in another layout cannot be continued: rows of an lmdb once had no names.
_LAYOUT_VERSIONS: Final = {"lmdb": " 2"}


@dataclass(frozen=True, slots=True)
class PackOptions:
    """What to pack and how. `restart` discards what an earlier run has left."""

    stream: str
    destination: Path
    format: PackFormat
    shuffle: bool = False
    restart: bool = False
    shard_bytes: int | None = None


class PackResult(msgspec.Struct, frozen=True):
    """The result: rows and bytes of the pack, samples that were left out, times of this run, and how to serve it."""

    path: str
    format: str
    samples: int
    bad: tuple[LeftOutSample, ...]
    bytes: int
    seconds: float
    samples_per_s: float
    verified_s: float
    serving: dict[str, object]


def pack_stream(config: Config, options: PackOptions, progress: SilentProgress) -> PackResult:
    """Packs a stream. Raises ConfigError for a stream that cannot be packed, PackError when the pack has failed."""
    _check_not_random(config, options)
    with PackWorkdir(options.destination) as work:
        if options.restart:
            work.clear_work_folder()
        is_begun = work.product_path.exists()
        journal = read_journal(work.journal_path) if is_begun else None
        if journal is None:
            if is_begun:
                progress.print_note(
                    "an unfinished pack of an earlier run has no whole file, so this run begins it again"
                )
            work.clear_work_folder()
        with list_and_open_stream(config, options.stream, work.folder / "list", progress.update_listing) as stream:
            rows = journal.batch_rows if journal else compute_pack_batch_rows(stream, config.memory)
            ordered = build_packing_stream(stream, shuffled=options.shuffle, batch_rows=rows)
            return _PackRun(config, options, work, ordered, progress).pack_and_publish(journal)


def describe_next_run(name: PackFormat) -> str:
    """Returns what another run does after one that was interrupted."""
    if name in _SINGLE_FILE_FORMATS:
        return f"a pack in {name} is one file, so it begins again"
    return "it continues after the last file that is whole, or begins again if there is none"


def _check_not_random(config: Config, options: PackOptions) -> None:
    """Raises ConfigError for random crops that a pack would fix: one crop of each sample."""
    stream = config.streams.get(options.stream)
    if stream is None:
        return
    for name, image in stream.all_images.items():
        key = f"streams.{options.stream}.{'image' if stream.images is None else f'images.{name}'}"
        if image.views is not None:
            raise ConfigError(
                f"{key}.views: a pack of views is not in this version; pack a stream of its own without views"
            )
        if image.frames is not None:
            raise ConfigError(
                f"{key}.frames: a pack of clips is not in this version; pack a stream of its own without frames"
            )
        if image.resize == "random_crop" and not (options.format == "tar" and stream.source.is_encoded):
            keeping = "use --format tar, which keeps the files, or " if stream.source.is_encoded else ""
            raise ConfigError(
                f"{key}.resize: random_crop takes a different part in every epoch, but a pack of decoded images has "
                f"one: {keeping}pack a stream of its own with resize: crop"
            )


def open_pack_writer(name: PackFormat, job: PackJob, shard_bytes: int | None) -> PackWriter:
    """Opens the writer of a format. Raises MissingExtraError, and ConfigError for shards of a format without shards."""
    if shard_bytes is not None and name in _SINGLE_FILE_FORMATS:
        raise ConfigError(f"--shard is for npy and tar; a pack in {name} is one file: leave --shard out")
    if shard_bytes is not None and shard_bytes < MIB:
        raise ConfigError(f"--shard {shard_bytes}: write 1MiB or more, or there would be too many files")
    match name:
        case "npy":
            from streamd.cli.pack.write_npy import NpyWriter  # noqa: PLC0415 - a format's libraries when it is wanted

            return NpyWriter(job, shard_bytes or PACK_SHARD_BYTES)
        case "tar":
            from streamd.cli.pack.write_tar import TarWriter  # noqa: PLC0415 - as above

            return TarWriter(job, shard_bytes or PACK_TAR_BYTES)
        case "hdf5":
            from streamd.cli.pack.write_hdf5 import Hdf5Writer  # noqa: PLC0415 - as above

            return Hdf5Writer(job)
        case "lmdb":
            from streamd.cli.pack.write_lmdb import LmdbWriter  # noqa: PLC0415 - as above

            return LmdbWriter(job)


def describe_packed_rows(spec: StreamSpec) -> list[str]:
    """Returns the settings that determine the rows of a pack, as texts for a digest: of images, boxes and points."""
    if spec.images.keys() == {ONLY_IMAGE}:
        images = [spec.image.describe_pixels()]  # as always, so that unfinished packs of older versions can be resumed
    else:
        images = [f"{name} {image.describe_pixels()}" for name, image in spec.images.items()]
    ragged = [label for label in spec.labels.values() if label.is_ragged]
    return images + [f"{each.name} {each.type} {each.rows} {each.image} {each.min_visible!r}" for each in ragged]


class _PackRun:
    """One run of a pack, phase by phase."""

    def __init__(
        self, config: Config, options: PackOptions, workdir: PackWorkdir, stream: ServedStream, progress: SilentProgress
    ) -> None:
        self._config, self._options, self._workdir, self._stream = config, options, workdir, stream
        self._progress = progress
        subject = PackJob(stream, workdir.product_path, workdir.scratch_path)
        self._writer = open_pack_writer(options.format, subject, options.shard_bytes)

    def pack_and_publish(self, earlier_journal: PackJournal | None) -> PackResult:
        next_run = describe_next_run(self._options.format)
        try:
            with translate_disk_full_error(self._workdir, self._writer.estimate_bytes, next_run):
                account, seconds = asyncio.run(self._decode_and_write(earlier_journal))
                if not account.checksum.rows:
                    raise PackError(f"{self._stream.spec.name}: all samples are bad, so there is nothing to pack")
                account.finish_pack(self._workdir.product_path)
            began_s = time.monotonic()
            self._verify_pack(account)
            verified_s = time.monotonic() - began_s
        finally:
            self._writer.close()
        pack_bytes = measure_allocated_bytes(self._workdir.product_path)
        self._workdir.move_product_to_destination()
        packed = account.done_samples - account.done_at_start
        kept = collect_kept_settings(self._config.streams[self._options.stream])
        return PackResult(
            path=str(self._workdir.destination),
            format=self._options.format,
            samples=account.checksum.rows,
            bad=tuple(account.left_out),
            bytes=pack_bytes,
            seconds=seconds,
            samples_per_s=packed / seconds if packed else 0.0,
            verified_s=verified_s,
            serving={**self._writer.build_serving_settings(self._workdir.destination), **kept},
        )

    async def _decode_and_write(self, earlier_journal: PackJournal | None) -> tuple[JournaledPack, float]:
        """Decodes and writes what earlier runs have not; returns the pack's account and the seconds that it took."""
        workers = min(self._config.worker_count, count_processors())
        memory_bytes = min(PACK_AHEAD_BYTES, self._config.memory // 2)
        loop = asyncio.get_running_loop()
        async with open_batch_decoder(self._stream, workers, memory_bytes) as decoder:
            pack_identity = self._compute_pack_identity(await decoder.wait_for_pixel_id())
            account = self._resume_or_start(earlier_journal, pack_identity)
            check_free_space(self._workdir, self._writer.estimate_bytes())
            packing = Phase("packing", "packed", "sample", self._stream.spec.sample_bytes)
            self._progress.start_phase(packing, self._stream.spec.samples, account.done_samples)
            began_s = time.monotonic()
            with ThreadPoolExecutor(1, "writer") as thread:
                decoder.request_batches_from(account.next_batch_index)
                while (batch := await decoder.wait_for_next_batch()) is not None:
                    done_before = account.done_samples
                    await loop.run_in_executor(thread, account.write_batch, batch)
                    decoder.release_batch(batch)
                    self._progress.advance(account.done_samples - done_before)
                # The rate of a pack counts until its last row is safe on the disk.
                await loop.run_in_executor(thread, account.sync_to_disk)
            return account, time.monotonic() - began_s

    def _compute_pack_identity(self, pixel_id: PixelId) -> str:
        """Computes the identity of the pack, from everything that decides its bytes."""
        spec = self._stream.spec
        layout = f"{self._options.format}{_LAYOUT_VERSIONS.get(self._options.format, '')}"
        how = (layout, str(self._options.shard_bytes), spec.shuffle, spec.seed)
        rows = describe_packed_rows(spec)
        return compute_identity("streamd pack 1", *how, spec.content_id, pixel_id, *rows, spec.bad_policy)

    def _resume_or_start(self, earlier_journal: PackJournal | None, pack_identity: str) -> JournaledPack:
        """Continues an interrupted run or begins a new pack. Raises PackError if data or settings have changed."""
        spec = self._stream.spec
        if earlier_journal and earlier_journal.identity != pack_identity:
            raise PackError(
                f"{escape_unprintable(str(self._options.destination))}: there is an unfinished pack of other data, or "
                f"with other settings ({earlier_journal.done:,} of {format_count(earlier_journal.samples, 'sample')} "
                "are in it): add --restart to throw it away, or name another place"
            )
        if earlier_journal:
            done = format_count(earlier_journal.done, "sample")
            self._progress.print_note(
                f"an earlier run has written all {done}, which are only read back"
                if earlier_journal.is_finished
                else f"this run continues after {done}, which are in the whole files of an earlier run"
            )
        fresh = PackJournal(identity=pack_identity, samples=spec.samples, batch_rows=spec.batch_size)
        account = JournaledPack(earlier_journal or fresh, self._workdir.journal_path, self._writer)
        known_bad = (BadSample(each.sample_id, each.reason) for each in account.left_out)
        self._stream.quarantine.append_new_bad_samples(known_bad)
        return account

    def _verify_pack(self, journaled_pack: JournaledPack) -> None:
        """Reads the whole pack back from the disk. Raises PackError unless it is what was written."""
        reading_back = Phase("reading back", "read back", "sample", self._stream.spec.sample_bytes)
        self._progress.start_phase(reading_back, journaled_pack.checksum.rows)
        found = PackChecksum()
        for sums in self._writer.read_checksums(journaled_pack.left_out_ids):
            found = found.with_added_rows(sums)
            self._progress.advance(sums.size)
        if found != journaled_pack.checksum:
            raise build_read_mismatch_error(self._options.destination)
