"""What a task leaves behind: verdicts, which are put on record before anything uses them, and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamd.core import log
from streamd.core.bad_samples import Verdict
from streamd.core.counters import Stats
from streamd.core.sampler import PAD_ID
from streamd.daemon.engine.batch_job import Job
from streamd.daemon.streams.served_stream import ServedStream
from streamd.ipc.worker_messages import Done


def count_task(job: Job, report: Done, stats: Stats) -> None:
    """Where the time of a task went, and what of it a cache held."""
    stream, rows = job.production.stream, job.task.rows.size
    group = f"stream.{job.production.key.stream}"
    stats.spread(group, "read").add(report.read_ns / 1e9, rows)
    stats.spread(group, "decode").add(report.decode_ns / 1e9, rows)
    if stream.cache is not None:
        stats.count(group, "cache_hits", report.gathered)
        stats.count(group, "cache_misses", rows - report.gathered)


def note_row_cost(job: Job, report: Done) -> None:
    """What a row of the stream takes; a task that did not make all its rows says nothing of that."""
    samples, cost = int(np.count_nonzero(job.task.ids != PAD_ID)), job.production.row_cost
    made = samples if job.production.stream.transform else samples - report.gathered
    if samples == 0 or report.decode_ns == 0 or report.bad or report.unfit:
        return
    if made:
        cost.note(made, report.decode_ns)
    else:
        cost.note_held(samples, report.decode_ns)


def record_verdicts(stream: ServedStream, verdicts: Sequence[Verdict], stats: Stats) -> str | None:
    """Puts verdicts that are new on record; why the stream must stop, if it must."""
    try:
        new = stream.quarantine.record(verdicts)
    except OSError as error:
        file = stream.file(verdicts[0].sample_id)
        return (
            f"the verdict on {file} ({verdicts[0].reason}) cannot be recorded: {error.strerror or error}; make room in "
            "the state directory, then restart streamd"
        )
    for verdict in new:
        stats.count(f"stream.{stream.spec.name}", "bad_samples")
        log.warning(
            "sample.bad",
            verdict.reason,
            stream=stream.spec.name,
            sample=verdict.sample_id,
            file=stream.file(verdict.sample_id),
        )
    return stream.too_many_bad()
