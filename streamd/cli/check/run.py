"""Runs a check: from a configuration to findings about its data, with progress. Leaves no files behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from streamd.cli.check.cluster_notes import list_cluster_notes
from streamd.cli.check.findings import CheckFindings
from streamd.cli.check.reader_messages import GroupResult, StreamToRead
from streamd.cli.check.reader_pool import ReaderPool
from streamd.cli.check.start_obstacles import find_start_obstacles
from streamd.cli.check.summary import build_findings
from streamd.cli.check.totals import StreamTotals, choose_counted_ids, choose_sample_ids, split_into_sample_groups
from streamd.cli.terminal.progress import SilentProgress
from streamd.config import locations
from streamd.config.load import add_error_locations, load_config
from streamd.config.schema import Config
from streamd.config.unserved import list_unserved_settings
from streamd.core.host import count_processors, hold_temporary_folder
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.text import escape_unprintable
from streamd.daemon.streams.catalog import find_expected_identities, open_streams, write_sample_manifests


def inspect_data(path: Path, progress: SilentProgress, max_files: int | None = None) -> CheckFindings:
    """Lists, reads and decodes the data of a configuration: of each stream `max_files` files, evenly spread, or all.

    Raises ConfigError for a configuration with which `streamd serve` would not start, StreamdError when nothing can be
    read.
    """
    config = load_config(path)
    unserved = list_unserved_settings(config)
    served = _drop_unserved_streams(config, unserved)
    obstacles = find_start_obstacles(config)
    refused = [
        escape_unprintable(locations.add_locations(sentence, config.key_locations))
        for sentence in (*unserved, *obstacles.troubles)
    ]
    found = _read_streams(served, progress, max_files)
    notes = found.notes if obstacles.daemon_note is None else [obstacles.daemon_note, *found.notes]
    return replace(found, refused=refused, refused_here=obstacles.refused_here, notes=notes)


def _read_streams(config: Config, progress: SilentProgress, max_files: int | None) -> CheckFindings:
    """Lists, reads and decodes the data of the streams that this version serves as configured."""
    if not config.streams:
        return CheckFindings(config.memory, config.worker_count, {})
    with hold_temporary_folder("streamd-check-") as folder:
        with add_error_locations(config):
            write_sample_manifests(config, folder, progress.update_listing)
            # Without `expect`, which would refuse a stream before its pixels are known; the findings compare both.
            opened = open_streams(config.model_copy(update={"expect": None}), folder)
            streams = [replace(each, expected=find_expected_identities(config, each.spec.name)) for each in opened]
        try:
            tallies = [StreamTotals(each, choose_sample_ids(each.spec.samples, max_files)) for each in streams]
            with add_error_locations(config):
                processes, notes = asyncio.run(_read_all_samples(tallies, config, progress))
            costs = {
                each.stream.spec.name: (
                    each.decode_s * 1e3 / each.samples_read * each.stream.spec.batch_size,
                    compute_slot_bytes(each.stream.spec),
                )
                for each in tallies
                if each.samples_read
            }
            notes += [config.memory_warning] if config.memory_warning else []
            notes += list_cluster_notes(config, costs, os.environ)
            return build_findings(tallies, config, processes, notes=notes)
        finally:
            for stream in streams:
                stream.manifest.close()


def _drop_unserved_streams(config: Config, unserved: Sequence[str]) -> Config:
    """Returns the configuration without the streams that this version does not serve as configured."""
    kept = {
        name: stream
        for name, stream in config.streams.items()
        if not any(sentence.startswith(f"streams.{name}.") for sentence in unserved)
    }
    return config.model_copy(update={"streams": kept})


async def _read_all_samples(
    all_totals: Sequence[StreamTotals], config: Config, progress: SilentProgress
) -> tuple[int, list[str]]:
    """Reads all chosen samples; returns the number of processes that read, and notes on what remained unclear."""
    progress.start_reading(sum(tally.ids.size for tally in all_totals))

    def add_group_result(seen: GroupResult) -> None:
        all_totals[seen.stream].add_group_result(seen)
        progress.advance_reading(len(seen.ids))

    streams = [tally.stream for tally in all_totals]
    to_read = [StreamToRead(stream.spec, str(stream.manifest_path), stream.transform) for stream in streams]
    work = chain.from_iterable(
        split_into_sample_groups(number, tally.ids, choose_counted_ids(tally.ids))
        for number, tally in enumerate(all_totals)
    )
    readers = ReaderPool(to_read, work, add_group_result)
    processes = min(config.worker_count, count_processors())
    await readers.read_all_groups(processes)
    return processes, readers.notes
