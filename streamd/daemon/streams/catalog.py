"""Builds the served streams from the configuration: makes or reuses manifests, shares classes, computes identities."""

from __future__ import annotations

import functools
import glob
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from streamd.config.images import build_image_spec
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import ExpectConfig
from streamd.core import log
from streamd.core.host import find_state_folder
from streamd.core.sampler import SampleOrder, compute_order_id
from streamd.core.spec import OrderId, PixelId, StreamSpec, compute_identity
from streamd.core.text import format_count, is_encodable
from streamd.daemon.streams.quarantine import Quarantine
from streamd.daemon.streams.served_stream import ServedStream, explain_other_order
from streamd.daemon.streams.shuffle_score import score_shuffle_mixing
from streamd.dataset.hdf5.chunk_grid import CompressedArray
from streamd.dataset.manifest import manifest
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.paths.patterns import NPY_SUFFIX
from streamd.dataset.scan import find_group_column, scan_source, select_part_samples, share_classes
from streamd.dataset.sources import DataSource, LabelSource
from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import CachePlace, TransformPlace

ListingProgress = Callable[[str, int], None]

_STATE_REMEDY: Final = "set STATE_DIRECTORY to a folder that you can write to"
_VERDICTS_SUFFIX: Final = ".bad.jsonl"
# The version is part of a manifest's identity, so a manifest of an earlier version is made again. An older manifest may
# point to numbers that NumPy cannot read as they are stored, or lack the names of the files that were packed, or the
# sizes that boxes were drawn on.
_LISTING_VERSIONS: Final = {"coco": " 2", "hdf5": " 3", "npy": " 2", "tar": " 2"}
_OWN_LABEL: Final = "label"  # the name of a folder's or a list's classes where the configuration gives no other


def find_state_directory() -> Path:
    """Returns the folder of manifests and verdicts: $STATE_DIRECTORY under systemd, else the user's state folder.

    Raises ConfigError for a user without such a folder, and for a name that is not UTF-8, since workers receive paths
    in it as UTF-8.
    """
    state = find_state_folder()
    if not is_encodable(str(state)):
        raise ConfigError(f"cannot keep state in {str(state)!a}, whose name is not UTF-8; {_STATE_REMEDY}")
    return state


def make_state_folder(state: Path) -> None:
    """Makes the folder `state`, readable by this user alone, unless it exists. Raises ConfigError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise build_unusable_state_error(state, error) from error


def build_unusable_state_error(state: Path, error: OSError) -> ConfigError:
    """Returns the error for a state folder that cannot be written."""
    return ConfigError(f"cannot keep state in {state}: {error.strerror}; {_STATE_REMEDY}")


def has_all_manifests(config: Config, state: Path) -> bool:
    """Whether every stream of this configuration has its manifest; if so, logs the date of the oldest."""
    if find_unlisted_streams(config, state):
        return False
    oldest_s = min(path.stat().st_mtime for path in build_manifest_paths(config, state).values())
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(oldest_s))
    log.info("manifest.reused", f"the samples are those listed on {made}; --rescan lists them again")
    return True


def find_unlisted_streams(config: Config, state: Path) -> frozenset[str]:
    """Returns the streams whose samples must be listed: all streams of each family in which one lacks its manifest."""
    lacking = {name for name, path in build_manifest_paths(config, state).items() if not path.exists()}
    return frozenset(
        name for family in group_streams_by_family(config) if not lacking.isdisjoint(family) for name in family
    )


def write_sample_manifests(
    config: Config, state: Path, progress: ListingProgress, *, names: Collection[str] | None = None
) -> None:
    """Lists the samples of the streams `names`, or of all, and deletes the verdicts on the lists that it replaces.

    `names` must hold whole families, see `group_streams_by_family`. Raises ConfigError.
    """
    make_state_folder(state)
    streams = [stream for name, stream in config.streams.items() if names is None or name in names]
    for stream in streams:
        # A missing transform is reported before the listing, which may take long.
        locate_stream_transform(stream, config.base_folder)
    paths, identities = build_manifest_paths(config, state), compute_config_ids(config)
    for name, scanned in share_classes(scan_stream_sources(streams, progress)).items():
        # Verdicts go first: a crash between the two steps leaves the old list without verdicts, and its bad samples
        # are found again. A new list never stands beside verdicts whose numbers count in another list.
        delete_verdicts(paths[name])
        manifest.write_manifest(paths[name], scanned, config_id=identities[name])


def delete_verdicts(manifest_path: Path) -> None:
    """Deletes the verdicts on a list, for all versions of its stream's transform."""
    for verdicts in manifest_path.parent.glob(f"{glob.escape(manifest_path.stem)}*{_VERDICTS_SUFFIX}"):
        verdicts.unlink(missing_ok=True)


def open_streams(config: Config, state: Path) -> list[ServedStream]:
    """Opens every stream of a configuration whose samples are listed, and maps its manifest.

    Touches no path of the data, which may be away. Raises ConfigError, also for an order that is not the expected one.
    """
    paths = build_manifest_paths(config, state)
    return [
        _open_stream(stream, paths[name], config.base_folder, (config.expect or {}).get(name))
        for name, stream in config.streams.items()
    ]


def group_streams_by_family(config: Config) -> list[frozenset[str]]:
    """Groups the streams into families whose lists depend on each other and are therefore made together.

    Labels of one name share one list of classes. Streams of one folder or table must agree on which of them has which
    sample.
    """
    found: list[tuple[frozenset[str], frozenset[str]]] = []  # streams, and the paths and labels that tie others to them
    for name, stream in config.streams.items():
        # A stream may tie families together that had nothing in common before it, so all of them merge.
        # What ties a stream to others: its path, and the names of its labels with classes.
        labels = stream.labels
        if labels is None:  # a folder or a list may have its own label, which only the data can show
            classes = [] if stream.source.kind == "table" else [_OWN_LABEL]
        else:
            classes = [name for name, label in labels.items() if label.type in {"category", "tags", "boxes"}]
        members, ties = (
            frozenset({name}),
            frozenset({f"path {stream.source.path}", *(f"label {name}" for name in classes)}),
        )
        kin = [family for family in found if not ties.isdisjoint(family[1])]
        found = [family for family in found if family not in kin]
        found.append((members.union(*(each[0] for each in kin)), ties.union(*(each[1] for each in kin))))
    return [members for members, _ in found]


def build_manifest_paths(config: Config, state: Path) -> dict[str, Path]:
    """Returns the path of each stream's list."""
    return {name: state / f"{name}-{config_id[:16]}.manifest" for name, config_id in compute_config_ids(config).items()}


def build_lock_paths(config: Config, state: Path) -> dict[str, Path]:
    """Returns the path of the lock of each stream's list; lists that are made together share one lock."""
    return {name: state / f"{config_id[:16]}.lock" for name, config_id in compute_config_ids(config).items()}


def build_quarantine_path(manifest_path: Path, transform: TransformPlace | None) -> Path:
    """Returns the path of a stream's verdicts, one file for each version of its transform.

    A sample on which one version of a transform raises may be good for the next version.
    """
    version = "" if transform is None else f".{transform.source_version[:16]}"
    return manifest_path.with_suffix(f"{version}{_VERDICTS_SUFFIX}")


def compute_config_ids(config: Config) -> dict[str, str]:
    """Returns for each stream a digest of what decides its manifest: its family's sources, labels, splits, weights."""
    ids: dict[str, str] = {}
    for family in group_streams_by_family(config):
        # Sorted: the order of the streams in the file decides nothing.
        streams = ((name, config.streams[name]) for name in sorted(family))
        parts = [
            (
                f"{name} {_format_source_for_id(each.source)}{_LISTING_VERSIONS.get(each.source.kind, '')} "
                f"{each.labels!r} {each.split!r}{_format_weights_and_images_for_id(each)}"
            )
            for name, each in streams
        ]
        ids |= dict.fromkeys(family, compute_identity("streamd config 1", *parts))
    return ids


def _format_source_for_id(source: DataSource) -> str:
    """Formats a source for the digest. Keys that were added later count only where they are given.

    Such keys are left out of the source's `repr`, so manifests that were made before a key existed stay valid.
    """
    declared: Any = source  # every source is a dataclass
    later = {each.name: (getattr(source, each.name), each.default) for each in fields(declared) if not each.repr}
    given = {name: value for name, (value, default) in later.items() if value != default}
    return f"{source!r}{given or ''}"


def _format_weights_and_images_for_id(stream: StreamConfig) -> str:
    """Formats weights, the places of images, and what arrays hold in mode raw.

    It is empty without weights and for the one picture of the source, so manifests made before there were weights or
    images stay valid.
    """
    request = stream.listing_request
    images = request.images or {}
    settings = (
        stream.weights,
        None if request.images is None else dict(images),
        {name: image.form for name, image in images.items() if image.form is not None} or None,
        {name: image.frames for name, image in images.items() if image.frames is not None} or None,
        request.raw,
    )
    return "".join(f" {each!r}" for each in settings if each is not None)


def scan_stream_sources(streams: Iterable[StreamConfig], progress: ListingProgress) -> dict[str, ScannedSamples]:
    """Lists the samples of each stream.

    Streams that take parts of one source share one listing: this halves the work, and no file can change between two
    parts.
    """
    wholes: dict[str, ScannedSamples] = {}  # by what decides the listing of a source
    found: dict[str, ScannedSamples] = {}
    for stream in streams:
        started_s = time.monotonic()
        request = stream.listing_request
        key = (
            f"{_format_source_for_id(stream.source.copy_without_part())} {stream.labels!r} "
            f"{find_group_column(request)!r}{_format_weights_and_images_for_id(stream)}"
        )
        if key not in wholes:
            wholes[key] = scan_source(request, partial(progress, stream.name))
        scanned = found[stream.name] = select_part_samples(request, wholes[key])
        seconds = time.monotonic() - started_s
        log.info("manifest.made", "listed the samples", stream=stream.name, samples=scanned.samples, seconds=seconds)
    return found


def describe_portable_settings(stream: StreamConfig) -> str:
    """Returns the settings that decide which samples a stream has, without the paths, which differ between hosts."""
    request, declared = stream.listing_request, cast("Any", stream.source)
    version = _LISTING_VERSIONS.get(stream.source.kind, "")
    given = {
        each.name: value
        for each in fields(declared)
        if each.name != "path" and not isinstance(value := getattr(declared, each.name), Path | None)
        # A key that was added later counts only where it is given, as in the digest.
        if each.repr or value != each.default
    }
    labels = None if request.labels is None else {name: _drop_path(each) for name, each in request.labels.items()}
    weights = None if request.weights is None else _drop_path(request.weights)
    settings = f"{given}{version} {labels} {request.split} {weights}"
    if request.images is None:
        return settings
    # Where the images of a sample lie, less the folders of .npy files, and what their arrays must hold.
    places: dict[str, tuple[str | None, Any]] = {}
    for name, image in request.images.items():
        place = image.place
        if place is not None and (stream.source.kind == "npy" or place.endswith(NPY_SUFFIX)):
            place = Path(place).name
        places[name] = place, image.form
    clips = {name: image.frames for name, image in request.images.items() if image.frames is not None}
    return f"{settings} {places} {clips!r}" if clips else f"{settings} {places}"


def _drop_path(label: LabelSource) -> LabelSource:
    return label if label.file is None else replace(label, source=None, file=Path(label.file.name))


def locate_stream_transform(stream: StreamConfig, folder: Path) -> TransformPlace | None:
    """Finds the source of a stream's transform, in the configuration's folder or installed. Raises ConfigError."""
    if stream.transform is None:
        return None
    try:
        return replace(find_transform_source(stream.transform, folder), by_name=stream.images is not None)
    except ConfigError as error:
        raise ConfigError(f"streams.{stream.name}.transform: {error}") from error


def _open_stream(stream: StreamConfig, path: Path, folder: Path, expected: ExpectConfig | None) -> ServedStream:
    listed = Manifest.open(path)
    if not listed.samples:
        raise ConfigError(f"streams.{stream.name}.source: no samples")
    batch_size, remainder = stream.batch_size, stream.remainder
    whole, rest = divmod(listed.samples, batch_size)
    packed = CompressedArray.from_manifest(listed.arrays, listed.find_extra_column)
    # `chunk` and `buffer` are as written, or else as compressed chunks are read fastest; 0 without chunks.
    shuffle, chunk, buffer = stream.shuffle, 0, 0
    if shuffle.kind == "chunk":
        chunk, buffer, written = shuffle.chunk, shuffle.buffer, shuffle.model_fields_set
        if packed is not None and "chunk" not in written:
            chunk = packed.compute_shuffle_chunk_samples(listed.samples)
        if packed is not None and "buffer" not in written:
            rows = listed.lookup_rows(np.arange(listed.samples, dtype=np.int64))
            buffer = packed.compute_shuffle_buffer_chunks(rows, chunk)
    normalize = stream.normalize if isinstance(stream.normalize, str) else stream.normalize.as_lists()
    stored = {} if listed.arrays is None else _check_array_images(stream, listed)
    # The order id is computed from the finished spec. The pixel id is known once a worker has opened the stream.
    spec = StreamSpec(
        name=stream.name,
        samples=listed.samples,
        batch_size=batch_size,
        batches=whole + bool(rest and remainder != "drop"),
        images={
            name: build_image_spec(name, stream.all_images, stream.normalize, stored) for name in stream.all_images
        },
        labels=listed.labels,
        normalize=normalize,
        shuffle=shuffle.kind,
        seed=shuffle.seed,
        remainder=remainder,
        bad_policy=stream.bad_policy,
        order_id=OrderId(""),
        pixel_id=PixelId(""),
        content_id=listed.content_id,
        chunk=chunk,
        buffer=buffer,
        weighted=listed.has_weights,
    )
    spec = replace(spec, order_id=compute_order_id(spec.order_facts))
    if spec.batches == 0:
        raise ConfigError(
            f"streams.{stream.name}: {format_count(spec.samples, 'sample')} cannot fill one batch of "
            f"{spec.batch_size}, and drop_remainder is true; set drop_remainder: false or a smaller batch_size"
        )
    if refusal := explain_other_order(expected, stream.name, spec.order_id):
        raise ConfigError(refusal)
    transform = locate_stream_transform(stream, folder)
    quarantine = Quarantine(
        build_quarantine_path(path, transform), lambda: listed.list_id, needs_bytes=expected is not None
    )
    quarantine.load_bad_samples()
    cache = None if stream.cache is None else CachePlace(str(stream.cache.path), stream.cache.max_bytes)
    return ServedStream(
        spec,
        path,
        listed,
        SampleOrder.from_spec(spec),
        quarantine,
        stream.bad_samples.max_fraction,
        # The score is computed once. Two threads at the same time would compute the same value twice.
        functools.cache(
            partial(
                score_shuffle_mixing,
                spec,
                listed.gather_label,
                is_packed=packed is not None and not packed.is_cacheable_whole,
            )
        ),
        cache,
        transform,
        expected=expected,
        has_default_fraction="max_fraction" not in stream.bad_samples.model_fields_set,
    )


def _check_array_images(stream: StreamConfig, listed: Manifest) -> dict[str, tuple[int, int]]:
    """Returns the (height, width) of each stored image. Raises ConfigError unless all are as configured."""
    sizes: dict[str, tuple[int, int]] = {}
    for name, image in stream.all_images.items():
        arrays = listed.image_arrays[name].arrays if name in listed.image_arrays else listed.arrays
        assert arrays is not None  # noqa: S101 - the caller has asked
        key = f"streams.{stream.name}.{'image' if stream.images is None else f'images.{name}'}"
        height, width, channels = arrays.shape
        if stream.images is None and image.size not in {None, "stored", (height, width)}:
            raise ConfigError(
                f"{key}.size: the arrays hold images of {width}x{height}, which are served as they are; write size: "
                "stored, and resize in the trainer's model, or save them resized"
            )
        if image.channel_count != channels:
            raise ConfigError(
                f"{key}.mode: {image.mode} has {format_count(image.channel_count, 'channel')}, but the images in the "
                f"arrays have {channels}; write mode: {'L' if channels == 1 else 'RGB'}"
            )
        sizes[name] = height, width
    return sizes
