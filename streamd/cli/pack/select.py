"""From the configuration to the one stream that is packed: all its samples, once, in the order of the pack."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from streamd.config import Config, list_unserved_settings, locate_errors
from streamd.config.locations import add_locations as placed
from streamd.core.sampler import SampleOrder
from streamd.daemon.streams.catalog import ListingProgress, group_families, list_samples, open_streams
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, suggest_name
from streamd.limits import MAX_BATCH_ROWS, PACK_BATCH_BYTES, TASK_ROWS

_BATCHES_PER_MEMORY: Final = 8  # that a batch may take


@contextmanager
def open_listed_stream(config: Config, name: str, folder: Path, progress: ListingProgress) -> Iterator[ServedStream]:
    """Lists the samples of stream `name`, as they are now, into `folder`, which is emptied. Raises ConfigError.

    Streams that share classes with it are listed, too: the classes shall have the numbers that trainers know.
    """
    part = _select_family(config, name)
    shutil.rmtree(folder, ignore_errors=True)
    with locate_errors(part):
        list_samples(part, folder, progress)
        streams = open_streams(part, folder)
    try:
        yield next(stream for stream in streams if stream.spec.name == name)
    finally:
        for stream in streams:
            stream.manifest.close()
        shutil.rmtree(folder, ignore_errors=True)


def _select_family(config: Config, name: str) -> Config:
    """The configuration less the streams that have nothing to do with this one, and less what is done in serving."""
    if name not in config.streams:
        known = ", ".join(config.streams)
        raise ConfigError(f"no stream {name!r}{suggest_name(name, config.streams)}; the configuration has {known}")
    family = next(family for family in group_families(config) if name in family)
    kept = {
        each: config.streams[each].model_copy(update={"transform": None}) for each in config.streams if each in family
    }
    part = config.model_copy(update={"streams": kept})
    unserved = [text for text in list_unserved_settings(part) if text.startswith("streams.")]
    if unserved:
        raise ConfigError("\n".join(placed(text, config.key_locations) for text in unserved))
    return part


def with_pack_order(stream: ServedStream, *, shuffled: bool, batch_rows: int) -> ServedStream:
    """The stream as it is packed: every sample once, by id or in one global order; a bad one leaves its row empty."""
    spec = stream.spec
    packed = replace(
        spec,
        batch_size=batch_rows,
        batches=-(-spec.samples // batch_rows),
        shuffle="full" if shuffled else "none",
        chunk=0,
        buffer=0,
        remainder="keep",
        bad_policy="fail" if spec.bad_policy == "fail" else "mask",
    )
    return replace(stream, spec=packed, order=SampleOrder.from_spec(packed))


def compute_batch_rows(stream: ServedStream, memory_bytes: int) -> int:
    """How many samples are decoded and written together: whole tasks, where one fits."""
    rows = min(PACK_BATCH_BYTES, memory_bytes // _BATCHES_PER_MEMORY) // stream.spec.image.row_bytes
    return min(max(1, rows if rows < TASK_ROWS else rows // TASK_ROWS * TASK_ROWS), MAX_BATCH_ROWS)
