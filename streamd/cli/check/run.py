"""Runs a check: from a configuration to findings about its data, with progress. Leaves no files behind."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, cycle
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from streamd.cli.check import labels
from streamd.cli.check.findings import (
    BadSampleOutcome,
    CacheEstimate,
    CheckFindings,
    DataLeak,
    EpochTimeEstimate,
    ImageSummary,
    LabelContradiction,
    MemoryEstimate,
    OddPictures,
    StreamFinding,
    TrainerCapacity,
    UnpackingEstimate,
    UnreadableFile,
    WeightSummary,
)
from streamd.cli.check.inspection_pool import InspectionPool
from streamd.cli.check.labels import FileContents, build_mask_findings
from streamd.cli.terminal import ProgressDisplay
from streamd.config import locations
from streamd.config.load import add_error_locations, load_config
from streamd.config.rules import list_unserved_settings
from streamd.config.schema import Config
from streamd.core.cluster_settings import LOCAL_ADDRESS
from streamd.core.host import count_processors, hold_temporary_folder
from streamd.core.sampler import PAD_ID, SampleOrder, compute_ids_of_batches
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import Cursor, PixelId, StreamShape
from streamd.core.text import escape_unprintable, format_count
from streamd.daemon.descriptor_allowance import compute_descriptor_allowance
from streamd.daemon.gate_keeper import find_network_keys
from streamd.daemon.served_endpoint import (
    build_endpoint_lock_path,
    build_folder_endpoint_error,
    build_unusable_endpoint_error,
)
from streamd.daemon.start_libraries import import_monitor
from streamd.daemon.streams.catalog import (
    build_unusable_state_error,
    find_state_directory,
    open_streams,
    write_sample_manifests,
)
from streamd.daemon.streams.manifest_locks import find_lock_holders
from streamd.daemon.streams.served_stream import ServedStream, explain_other_order, explain_other_pixels
from streamd.daemon.streams.shuffle_score import score_stored_order_mixing
from streamd.dataset.cache import CacheLayout
from streamd.dataset.hdf5.chunk_grid import CompressedArray
from streamd.dataset.hdf5.library_store import ChunkCache
from streamd.dataset.manifest.types import Int64s
from streamd.decode.pixel_id import compute_sample_pixel_id
from streamd.errors import ConfigError, MissingExtraError
from streamd.ipc import endpoint
from streamd.ipc.worker_messages import (
    RECORDED_EFFECTS,
    ClassPixels,
    GroupResult,
    InspectRows,
    OddBoxes,
    OddSizes,
    PictureOddity,
    SampleFault,
)
from streamd.limits import (
    CHUNKS_KEPT_BYTES,
    DEFAULT_CREDIT,
    MASKS_COUNTED,
    MAX_SESSIONS,
    MIB,
    TASK_ROWS,
    UNPACKING_ROWS,
)
from streamd.scheduler.admission import AdmissionDenial, SchedulerLimits, admit_session, compute_production_slots
from streamd.scheduler.events import Subscribed
from streamd.scheduler.session import ScheduledSession


def inspect_data(path: Path, progress: ProgressDisplay, max_files: int | None = None) -> CheckFindings:
    """Lists, reads and decodes the data of a configuration: of each stream `max_files` files, evenly spread, or all.

    Raises ConfigError for a configuration with which `streamd serve` would not start, StreamdError when nothing can be
    read.
    """
    config = load_config(path)
    unserved = list_unserved_settings(config)
    served = {
        name: stream
        for name, stream in config.streams.items()
        if not any(sentence.startswith(f"streams.{name}.") for sentence in unserved)
    }
    obstacles = find_start_obstacles(config)
    refused = [
        escape_unprintable(locations.add_locations(sentence, config.key_locations))
        for sentence in (*unserved, *obstacles.troubles)
    ]
    notes = [] if obstacles.daemon_note is None else [obstacles.daemon_note]
    if not served:
        found = CheckFindings(config.memory, config.worker_count, {}, notes=notes)
        return replace(found, refused=refused, refused_here=obstacles.refused_here)
    # The data of the streams that this version serves as configured.
    config = config.model_copy(update={"streams": served})
    with hold_temporary_folder("streamd-check-") as folder:
        with add_error_locations(config):
            write_sample_manifests(config, folder, progress.update_listing)
            # Without `expect`, which would refuse a stream before its pixels are known; the findings compare both.
            opened = open_streams(config.model_copy(update={"expect": None}), folder)
            streams = [replace(each, expected=(config.expect or {}).get(each.spec.name)) for each in opened]
        try:
            tallies = [StreamTotals(each, choose_sample_ids(each.spec.samples, max_files)) for each in streams]
            progress.start_phase(sum(tally.ids.size for tally in tallies))

            def add_group_result(seen: GroupResult) -> None:
                tallies[seen.stream].add_group_result(seen)
                progress.advance(len(seen.ids))

            commands = [stream.build_open_command(number) for number, stream in enumerate(streams)]
            work = chain.from_iterable(
                split_into_sample_groups(number, tally.ids, choose_counted_ids(tally.ids))
                for number, tally in enumerate(tallies)
            )
            workers = InspectionPool(commands, work, add_group_result)
            processes = min(config.worker_count, count_processors())
            with add_error_locations(config):
                asyncio.run(workers.inspect_all_groups(processes))
            costs = {
                each.stream.spec.name: (
                    each.decode_s * 1e3 / each.samples_read * each.stream.spec.batch_size,
                    compute_slot_bytes(each.stream.spec),
                )
                for each in tallies
                if each.samples_read
            }
            notes += [*workers.notes, *([config.memory_warning] if config.memory_warning else [])]
            notes += list_cluster_notes(config, costs, os.environ)
            read = build_findings(tallies, config, processes, notes=notes)
            return replace(read, refused=refused, refused_here=obstacles.refused_here)
        finally:
            for stream in streams:
                stream.manifest.close()


# --- What `streamd check` says of a cluster that decodes: whether it pays, and whether it is open. Pure.


# Measured (docs/decisions.md): the path through Ray costs this much processor time for each MiB of a batch.
OVERHEAD_MS_A_MIB: Final = 3.8
_PAYS_FROM: Final = 0.6  # of a node's time must be decoding, or the host's own workers are nearly as fast
_AUTH_MODE: Final = "RAY_AUTH_MODE"


def list_cluster_notes(
    config: Config, decode_ms_by_stream: Mapping[str, tuple[float, int]], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields remarks, a sentence each; none where this host decodes.

    `decode_ms_by_stream` has the milliseconds of decoding one batch, and the bytes of its slot.
    """
    if config.engine.kind != "ray":
        return
    # A cluster that streamd starts for itself asks for a token, unless the mode is set to something else.
    mode = environment.get(_AUTH_MODE, "token" if config.engine.cluster_settings.address == LOCAL_ADDRESS else None)
    if mode != "token":
        what = f"is {mode} here" if mode else "is not set here, and many clusters want no token"
        yield (
            f"engine: {_AUTH_MODE} {what}, so whoever reaches a port of the cluster may run programs there: set "
            f"{_AUTH_MODE}=token for the cluster and for streamd, and keep its ports in a network that you trust"
        )
    for name, (decode_ms, slot_bytes) in decode_ms_by_stream.items():
        share = compute_decoding_share(decode_ms, slot_bytes)
        advice = "a cluster pays" if share >= _PAYS_FROM else "use engine: local, unless this host has too few cores"
        yield (
            f"engine: decoding a batch of {name!r} takes {decode_ms:.1f} ms and sending its {slot_bytes / MIB:.1f} MiB "
            f"through Ray {slot_bytes / MIB * OVERHEAD_MS_A_MIB:.1f} ms, so a node decodes {share:.0%} of its time: "
            f"{advice}"
        )


def compute_decoding_share(decode_ms: float, slot_bytes: int) -> float:
    """Returns the part of a node's time in which it decodes, 0 to 1."""
    overhead_ms = slot_bytes / MIB * OVERHEAD_MS_A_MIB
    return decode_ms / (decode_ms + overhead_ms) if decode_ms > 0 else 0.0


# --- Finds reasons, other than the data, for which `serve` would refuse: endpoint, monitor, state folder, descriptors.
#
# Nothing is created or locked. The monitor's address is opened for a moment, by the daemon's own code.


# Errors that depend on the user or on the moment, and not on the configuration.
_PASSING_ERRORS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EADDRINUSE})


@dataclass(frozen=True, slots=True)
class StartObstacles:
    """Reasons for which a daemon would not start.

    troubles: reasons in the configuration.
    refused_here: reasons that depend on the user, the environment or the moment; a service uses other folders.
    daemon_note: names the daemon that serves at the endpoint already, if there is one.
    """

    troubles: list[str]
    refused_here: list[str]
    daemon_note: str | None = None


def find_start_obstacles(config: Config) -> StartObstacles:
    """Finds the reasons for which this user could not start a daemon here and now.

    Raises MissingExtraError if a library of the monitor is missing.
    """
    address = config.local_endpoint or endpoint.default_endpoint()
    of_config: list[ConfigError] = []
    of_environment: list[ConfigError] = []
    # A daemon that serves here already has the endpoint, and perhaps the monitor's address.
    daemon_note = None
    socket_path = endpoint.socket_path(address)
    if pids := sorted(find_lock_holders(build_endpoint_lock_path(socket_path))):
        daemon_note = escape_unprintable(
            f"a daemon (pid {pids[0]}) serves at {socket_path}: kill -HUP {pids[0]} makes it read its configuration "
            "again; a second daemon needs a different `listen:`"
        )
    # The state folder, in which this user must be able to write.
    with _collect_refusal(of_environment):
        state = find_state_directory()
        if (error := _find_unusable_folder(state)) is not None:
            raise build_unusable_state_error(state, error) from error
    # The descriptors that this environment allows.
    with _collect_refusal(of_environment):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        compute_descriptor_allowance(
            most, workers=config.worker_count, streams=len(config.streams), is_monitored=config.monitor is not None
        )
    # The keys for other hosts; a secret that the configuration does not name comes from a service manager.
    if config.remote_endpoints and config.curve is not None:
        with _collect_refusal(of_environment if config.curve.secret is None else of_config):
            find_network_keys(config.curve.secret, config.curve.clients)
    if daemon_note is None:
        # Endpoints of other kinds are not served. At this one, this user must be able to listen.
        with _collect_refusal(of_config if config.listen else of_environment):
            if address.startswith("ipc://"):
                endpoint.check_endpoint(address)
                lock = build_endpoint_lock_path(socket_path)
                error = _find_unusable_folder(socket_path.parent)
                if error is None and os.path.lexists(lock) and not os.access(lock, os.R_OK | os.W_OK):
                    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(lock))
                if error is not None:
                    raise build_unusable_endpoint_error(socket_path, error) from error
                if socket_path.is_dir():
                    raise build_folder_endpoint_error(socket_path)
        if config.monitor is not None:
            with _collect_refusal(of_config):
                asyncio.run(_open_and_close_monitor(config.monitor))
    # What another user, or the same one at another time, may succeed with is no fault of the configuration.
    passing = [
        error
        for error in of_config
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _PASSING_ERRORS
    ]
    return StartObstacles(
        [escape_unprintable(str(error)) for error in of_config if error not in passing],
        [escape_unprintable(str(error)) for error in (*of_environment, *passing)],
        daemon_note,
    )


@contextmanager
def _collect_refusal(found: list[ConfigError]) -> Iterator[None]:
    """Adds the ConfigError that ends the block to `found`; a missing library must be remedied before all others."""
    try:
        yield
    except MissingExtraError:
        raise
    except ConfigError as error:
        found.append(error)


def _find_unusable_folder(folder: Path) -> OSError | None:
    """Returns why this user cannot write in a folder, or create a missing one; None if this is possible."""
    nearest = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    try:
        is_folder = nearest.is_dir()
    except OSError as error:  # a link to a folder that this user cannot enter
        return error
    if not is_folder:
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))
    return None


async def _open_and_close_monitor(address: str) -> None:
    """Raises ConfigError for an address at which the monitor cannot listen."""
    monitor = import_monitor()(address)
    await monitor.start_listening()
    await monitor.close()


# --- Builds the findings from the listed and read samples, with estimates of memory, time, cache and order.


_MAX_SIZES: Final = 20  # the most frequent ones are kept

StreamsByName = Mapping[str, ServedStream]
DuplicateGroups = Sequence[Sequence[labels.StreamSample]]


def build_findings(
    all_totals: Sequence[StreamTotals], config: Config, processes: int, *, notes: list[str]
) -> CheckFindings:
    """Builds all findings about the streams of `config`, which `processes` processes have read."""
    streams = {tally.stream.spec.name: tally.stream for tally in all_totals}
    contents = {tally.stream.spec.name: tally.comparable_contents for tally in all_totals}
    groups = labels.find_duplicate_groups(contents)
    shared = labels.find_shared_files(groups)
    alike = labels.group_identical_streams(shared, {name: each.ids.size for name, each in contents.items()})
    reported = {name for group in alike for name in group[1:]}
    shapes = [stream.stream_shape for stream in streams.values()]
    limits = SchedulerLimits(config.memory, config.worker_count)
    similar = list(_find_similar_classes(streams, config))
    leaks = []
    for each in shared:
        if reported.isdisjoint((each.first, each.second)):
            names = (streams[each.first].format_file_name, streams[each.second].format_file_name)
            example = names[0](each.example[0]), names[1](each.example[1])
            leaks.append(DataLeak(each.first, each.second, each.files, example))
    return CheckFindings(
        memory_bytes=config.memory,
        workers=config.worker_count,
        streams={
            tally.stream.spec.name: _build_stream_finding(tally, config, processes, groups) for tally in all_totals
        },
        together=compute_trainer_capacity(shapes, limits) if len(shapes) > 1 else None,
        leaks=leaks,
        contradictions=list(_find_contradictions(groups, streams)),
        similar_classes=[each for each in similar if not each.are_boxes],
        notes=[
            *notes,
            *_find_setting_warnings(streams, config),
            *(labels.format_similar_classes(each) for each in similar if each.are_boxes),
            *(
                f"{', '.join(names[:-1])} and {names[-1]} hold the same files: fine for training, but a model trained "
                "on one of them cannot be judged on the others"
                for names in alike
            ),
        ],
    )


def _find_setting_warnings(streams: StreamsByName, config: Config) -> Iterator[str]:
    """Warns of settings that are allowed and seldom meant so: random crops in an evaluation, clips across a split."""
    for name, stream in streams.items():
        # Streams in stored order are those for evaluation.
        if (stream.spec.shuffle, stream.spec.image.resize) == ("none", "random_crop"):
            yield (
                f"{name}: is not shuffled, as for evaluation, and shows a different part of each image in every "
                "epoch, so that results differ by chance; set image.resize: crop there"
            )
    for name in streams:
        # The split may put rows of one sequence into both parts, which then share pictures.
        settings = config.streams[name]
        if settings.split is None or settings.source.part not in {"train", "validation"}:
            continue
        for image, each in settings.all_images.items():
            if each.frames is not None and settings.split.by != each.frames.by:
                yield (
                    f"{name}: the clips of {image!r} show neighbouring rows, which the split may have put into the "
                    f"other part, so that validation looks better than it is; add  by: {each.frames.by}  to split"
                )


def _build_stream_finding(
    totals: StreamTotals, config: Config, processes: int, groups: DuplicateGroups
) -> StreamFinding:
    stream, spec, manifest = totals.stream, totals.stream.spec, totals.stream.manifest
    shape, limits = stream.stream_shape, SchedulerLimits(config.memory, config.worker_count)
    in_order = score_stored_order_mixing(spec, manifest.gather_label)
    chunks = estimate_unpacking(stream, processes)
    # The labels: boxes and points with what the workers found odd about them.
    found_labels = {
        name: labels.build_box_finding(
            each, manifest.ragged_column(name), totals.odd_boxes.get(name, OddBoxes()), stream.format_file_name
        )
        if each.is_ragged
        else labels.build_label_finding(each, manifest.label_column(name))
        for name, each in spec.labels.items()
    }
    # Weights, unless all samples weigh 1.
    weights = manifest.gather_weights(np.arange(spec.samples))
    summary = None
    if not (weights == 1).all():
        least, most, mean = weights.min(), weights.max(), weights.mean(dtype=np.float64)
        summary = WeightSummary(float(least), float(most), float(mean), int(np.count_nonzero(weights == 0)))
    # The order, in words, and whether order and pixels are what `expect` asks for.
    shuffle: str = spec.shuffle
    if shuffle == "chunk":
        shuffle = f"chunk, {format_count(spec.buffer, 'chunk')} of {format_count(spec.chunk, 'sample')} at a time"
    expected = (config.expect or {}).get(spec.name)
    others = [explain_other_order(expected, spec.name, spec.order_id)]
    if totals.pixel_id:
        others.append(explain_other_pixels(expected, spec.name, totals.pixel_id))
    # The time of an epoch. Files were read in stored order, where each chunk was wanted but once.
    scale = spec.samples / totals.samples_read / processes
    read_s = totals.read_s
    if chunks is not None and totals.unpacked_chunks:
        read_s += totals.unpack_s * (totals.samples_read * chunks.per_sample / totals.unpacked_chunks - 1)
    return StreamFinding(
        samples=spec.samples,
        read=totals.samples_read,
        batches=spec.batches,
        batch_size=spec.batch_size,
        size=(spec.image.height, spec.image.width),
        bytes=int(manifest.sizes.sum()),
        root=os.fsencode(manifest.root).decode(errors="backslashreplace"),
        labels=found_labels,
        pictures=_summarize_images(totals, config.streams[spec.name].source.kind),
        unreadable=[
            UnreadableFile(each.sample_id, stream.format_file_name(each.sample_id), each.reason, each.effect)
            for each in sorted(totals.faults, key=lambda fault: fault.sample_id)
        ],
        duplicates=[
            [stream.format_file_name(sample_id) for sample_id in ids]
            for ids in labels.find_repeated_samples(groups, spec.name)
        ],
        bad_samples=_judge_bad_samples(totals),
        memory=MemoryEstimate(
            shape.slot_bytes,
            DEFAULT_CREDIT * shape.slot_bytes,
            compute_production_slots(shape, limits) * shape.slot_bytes,
            compute_trainer_capacity([shape], limits),
        ),
        epoch=EpochTimeEstimate(processes, (read_s + totals.decode_s) * scale, read_s * scale),
        cache=estimate_cache(stream),
        shuffle=shuffle,
        shuffle_score=stream.shuffle_score,
        stored_score=None if in_order is None else in_order.score,
        poorly_mixed=stream.mixing_advice,
        unpacking=chunks,
        weights=summary,
        order_id=spec.order_id,
        pixel_id=totals.pixel_id,
        unexpected=[each for each in others if each is not None],
        masks=build_mask_findings(
            spec.images, spec.samples, totals.class_pixels, totals.odd_sizes, stream.format_file_name
        ),
    )


def _summarize_images(totals: StreamTotals, kind: str) -> ImageSummary:
    """Describes the files of a source of this kind, which stands for the format of arrays."""
    sizes = dict(totals.sizes.most_common(_MAX_SIZES))
    formats = dict(totals.formats.most_common())
    if totals.stream.manifest.arrays is not None and totals.sizes:
        formats = {kind.upper(): totals.sizes.total()}
    odd = {
        oddity: OddPictures(len(ids), totals.stream.format_file_name(min(ids)))
        for oddity, ids in totals.odd_pictures.items()
    }
    return ImageSummary(formats, sizes, len(totals.sizes), totals.enlarged, totals.transparent, odd)


def _judge_bad_samples(totals: StreamTotals) -> BadSampleOutcome:
    """Describes what the daemon would do about the faults, in its own words where it has some."""
    stream = totals.stream
    unread = [fault for fault in totals.faults if fault.effect != "transform"]
    files = len({stream.find_bad_picture(fault.sample_id, fault.reason) for fault in unread})
    known = stream.quarantine.reasons  # of this look alone, in memory
    known.update({fault.sample_id: fault.reason for fault in totals.faults if fault.effect in RECORDED_EFFECTS})
    stops = stream.explain_too_many_bad_samples()
    # A fault that is no verdict stops the stream, however few there are.
    other = next((fault for fault in totals.faults if fault.effect not in RECORDED_EFFECTS), None)
    if stops is None and other is not None:
        stops = f"{stream.format_file_name(other.sample_id)}: {other.reason}, and the stream does not skip such a fault"
    return BadSampleOutcome(
        stream.spec.bad_policy,
        stream.max_bad_fraction,
        stops,
        stream.count_allowed_pictures(),
        files if files < len(unread) else 0,
    )


def compute_trainer_capacity(shapes: Sequence[StreamShape], limits: SchedulerLimits) -> TrainerCapacity:
    """Computes how many trainers fit that each read all of `shapes`, up to the most that a daemon accepts.

    The scheduler's own code admits one after another.
    """
    sessions: list[ScheduledSession] = []
    at_ease = 0
    while len(sessions) + len(shapes) <= MAX_SESSIONS:
        trainers = len(sessions) // len(shapes)
        for shape in shapes:
            subscribed = Subscribed(
                len(sessions), shape.name, 0, 1, "drop", None, Cursor(), DEFAULT_CREDIT, resuming=False
            )
            verdict = admit_session(subscribed, shape, sessions, limits)
            if isinstance(verdict, AdmissionDenial):
                return TrainerCapacity(at_ease, trainers, None if trainers else verdict.text)
            for number, credit in verdict.shrunk_credits.items():
                sessions[number].credit = credit
            sessions.append(ScheduledSession.from_subscription(subscribed, shape, verdict.credit))
        if all(session.credit == DEFAULT_CREDIT for session in sessions):
            at_ease = trainers + 1
    return TrainerCapacity(at_ease, len(sessions) // len(shapes))


def _find_similar_classes(streams: StreamsByName, config: Config) -> Iterator[labels.SimilarClasses]:
    """Finds classes with names that differ slightly, which are probably one.

    Skips those that a configuration lists, and classes without a box.
    """
    specs = {name: label for stream in streams.values() for name, label in stream.spec.labels.items()}
    for name, spec in specs.items():
        wanted = ((config.streams[each].labels or {}).get(name) for each in streams)
        if any(each is not None and (each.classes is not None or isinstance(each.source, tuple)) for each in wanted):
            continue
        for group in labels.group_similar_names(dict.fromkeys(str(each) for each in spec.classes)):
            uses = [_build_class_use(name, each, streams) for each in group]
            used = [each for each in uses if each.samples or not spec.is_ragged]
            if len(used) > 1:
                yield labels.SimilarClasses(name, used, spec.is_ragged)


def _build_class_use(label: str, class_name: str, streams: StreamsByName) -> labels.ClassUse:
    """Returns the number of a class's samples in all streams, and the first sample."""
    samples, example = 0, ""
    for name, stream in streams.items():
        spec = stream.spec.labels.get(label)
        number = (
            next((number for number, each in enumerate(spec.classes) if str(each) == class_name), -1) if spec else -1
        )
        if spec is None or number < 0 or not spec.counts[number]:
            continue
        if not example:
            listed = stream.manifest
            column = listed.ragged_column(label) if spec.is_ragged else listed.label_column(label)
            example = f"{name}: {stream.format_file_name(labels.find_first_sample_of_class(spec, column, number))}"
        samples += spec.counts[number]
    return labels.ClassUse(class_name, samples, example)


def _find_contradictions(groups: DuplicateGroups, streams: StreamsByName) -> Iterator[LabelContradiction]:
    """Yields the files of one content with different values of a label, with these as users write them."""
    specs = {
        name: {label: spec for label, spec in stream.spec.labels.items() if not spec.is_ragged}
        for name, stream in streams.items()
    }
    columns = {
        name: {label: stream.manifest.label_column(label) for label in specs[name]} for name, stream in streams.items()
    }
    for conflict in labels.find_label_conflicts(groups, specs, columns):
        files, values = [], []
        for stream, sample_id in conflict.samples:
            files.append(f"{stream}: {streams[stream].format_file_name(sample_id)}")
            spec = specs[stream][conflict.label]
            value = streams[stream].manifest.gather_label(conflict.label, np.array([sample_id]))[0]
            if spec.type == "category":
                values.append(str(spec.classes[int(value)]))
            elif spec.type == "tags":
                values.append(" and ".join(str(spec.classes[tag]) for tag in np.flatnonzero(value)) or "no tag")
            else:
                values.append(", ".join(f"{each:g}" for each in np.atleast_1d(value).tolist()))
        yield LabelContradiction(conflict.label, files, values, trouble=conflict.type in {"category", "tags"})


# --- what a cache takes of the disk, and an order decompresses


def estimate_cache(stream: ServedStream) -> CacheEstimate | None:
    """Estimates a stream's cache without creating it; None for a stream without one."""
    if stream.cache is None:
        return None
    folder = Path(stream.cache.folder)
    shape = CacheLayout.from_stream_spec(stream.spec, compute_sample_pixel_id(stream.spec.images))
    kept = shape.count_rows_within_limit(stream.cache.max_bytes)
    file = folder / shape.cache_file_name
    allocated_bytes = file.stat().st_blocks * 512 if file.is_file() else 0
    # The file system on which the folder is, or will be.
    existing = next(place for place in (folder, *folder.parents) if place.is_dir())
    return CacheEstimate(
        folder=os.fsencode(folder).decode(errors="backslashreplace"),
        samples=kept,
        bytes=shape.file_bytes(kept),
        all_bytes=shape.file_bytes(shape.samples),
        free_bytes=shutil.disk_usage(existing).free + allocated_bytes,
    )


def estimate_unpacking(stream: ServedStream, workers: int) -> UnpackingEstimate | None:
    """Estimates decompression from the first batches of a stream; None if it costs the same in any order."""
    packed = CompressedArray.from_manifest(stream.manifest.arrays, stream.manifest.find_extra_column)
    if packed is None:
        return None
    order, rows = stream.order, stream.manifest.lookup_rows(np.arange(stream.spec.samples, dtype=np.int64))
    chunk = packed.compute_shuffle_chunk_samples(rows.size)
    buffer = packed.compute_shuffle_buffer_chunks(rows, chunk)
    fast = msgspec.structs.replace(order, shuffle="chunk", chunk=chunk, buffer=buffer)
    return UnpackingEstimate(
        packed.chunk_rows,
        packed.chunk_bytes,
        _count_chunks_per_sample(packed, order, rows, workers),
        chunk,
        buffer,
        _count_chunks_per_sample(packed, fast, rows, workers),
    )


def _count_chunks_per_sample(array: CompressedArray, order: SampleOrder, rows: Int64s, workers: int) -> float:
    """Returns the chunks that are decompressed for each sample, by workers that take tasks in turn."""
    turns = cycle([ChunkCache(CHUNKS_KEPT_BYTES) for _ in range(workers)])
    count = min(order.batches, max(1, UNPACKING_ROWS // order.batch_size))
    indices = np.arange(count, dtype=np.int64)
    ids = compute_ids_of_batches(order, 0, indices, np.full(count, order.batch_size, dtype=np.int64))
    # The tasks of each batch, without padding.
    tasks = (
        batch[start : start + TASK_ROWS]
        for batch in ids.reshape(count, -1)
        for start in range(0, order.batch_size, TASK_ROWS)
    )
    stand_in = np.broadcast_to(np.uint8(0), array.chunk_bytes)  # as large as a chunk, and takes no memory
    unpacked = samples = 0
    for task in tasks:
        there = task[task != PAD_ID]
        if not there.size:
            continue
        samples += there.size
        # The worker decompresses the chunks that the task needs and its cache lacks.
        cache, wanted = next(turns), np.unique(rows[there] // array.chunk_rows).tolist()
        for place in cache.order_cached_first((), wanted):
            if cache.get_chunk((), wanted[place]) is None:
                cache.add_chunk((), wanted[place], stand_in)
                unpacked += 1
    return unpacked / samples


# --- Sums of a stream's results from the workers.


_COUNTED_SEED: Final = 0


def choose_sample_ids(samples: int, max_samples: int | None) -> Int64s:
    """Returns the sample ids to read: all, or `max_samples` of them, evenly spread."""
    if max_samples is None or max_samples >= samples:
        return np.arange(samples, dtype=np.int64)
    return np.arange(max_samples, dtype=np.int64) * samples // max_samples


def choose_counted_ids(ids: Int64s, most: int = MASKS_COUNTED) -> Int64s:
    """Returns the `ids` whose masks are counted, in rising order: all, or `most` of them, always the same ones."""
    if ids.size <= most:
        return ids
    return np.sort(np.random.default_rng(_COUNTED_SEED).choice(ids, most, replace=False))


def split_into_sample_groups(stream: int, ids: Int64s, counted: Int64s) -> Iterator[InspectRows]:
    """Splits a stream's `ids` into groups as large as a worker's tasks; the masks of the `counted` ones are counted."""
    is_counted = np.isin(ids, counted)
    for start in range(0, ids.size, TASK_ROWS):
        part = slice(start, start + TASK_ROWS)
        yield InspectRows(stream, ids[part].tolist(), ids[part][is_counted[part]].tolist())


class StreamTotals:
    """One stream's sums; `ids` are the samples to be read, in rising order."""

    def __init__(self, stream: ServedStream, ids: Int64s) -> None:
        self.stream = stream
        self.ids = ids
        self.samples_read = 0
        self.read_s = 0.0
        self.decode_s = 0.0
        self.unpacked_chunks = 0
        self.unpack_s = 0.0
        self.formats: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.enlarged = 0
        self.pixel_id = PixelId("")  # as long as no process has read anything
        self.transparent = 0
        self.odd_pictures: dict[PictureOddity, list[int]] = {}
        self.odd_boxes: dict[str, OddBoxes] = {}
        self.odd_sizes: dict[str, OddSizes] = {}
        self.class_pixels: dict[str, ClassPixels] = {}
        self.faults: list[SampleFault] = []
        self._digests = np.zeros((ids.size, 2), dtype=np.uint64)
        self._good = np.zeros(ids.size, dtype=np.bool_)

    def add_group_result(self, result: GroupResult) -> None:
        """Adds the result of one group."""
        self.samples_read += len(result.ids)
        self.read_s += result.read_s
        self.decode_s += result.decode_s
        self.unpacked_chunks += result.unpacked
        self.unpack_s += result.unpack_s
        self.formats.update(result.formats)
        self.sizes.update(result.sizes)
        self.enlarged += result.enlarged
        self.pixel_id = PixelId(result.pixel_id) or self.pixel_id
        self.transparent += result.transparent
        for oddity, ids in result.odd_pictures.items():
            self.odd_pictures.setdefault(oddity, []).extend(ids)
        for label, odd in result.odd_boxes.items():
            self.odd_boxes[label] = self.odd_boxes.get(label, OddBoxes()).add_odd_boxes(odd)
        for name, sizes in result.odd_sizes.items():
            self.odd_sizes[name] = self.odd_sizes.get(name, OddSizes()).add_odd_sizes(sizes)
        for name, pixels in result.class_pixels.items():
            self.class_pixels[name] = self.class_pixels.get(name, ClassPixels()).add_class_pixels(pixels)
        # With `expect`, a fault of this host's copy stops the stream.
        self.faults += [
            replace(fault, effect="retry") if fault.of_this_host and self.stream.expected is not None else fault
            for fault in result.faults
        ]
        bad = {fault.sample_id for fault in result.faults}
        good = np.searchsorted(self.ids, [sample_id for sample_id in result.ids if sample_id not in bad])
        self._good[good] = True
        self._digests[good] = np.frombuffer(bytes.fromhex("".join(result.digests)), dtype=np.uint64).reshape(-1, 2)

    @property
    def comparable_contents(self) -> FileContents:
        """The contents that can be compared: those of all files that were read and are images."""
        ids = self.ids[self._good]
        return FileContents(ids, self.stream.manifest.lookup_sample_bytes(ids), self._digests[self._good])
