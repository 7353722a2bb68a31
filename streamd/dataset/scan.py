"""Lists the samples of a source of any kind: all of its parts, before a stream selects its own.

Weights of samples are read as one more label, which no stream can name, and then taken out of the labels.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

import numpy as np

from streamd.dataset.files import FolderSource
from streamd.dataset.files.beside import add_pattern_images
from streamd.dataset.formats import FORMATS
from streamd.dataset.layouts import FolderTree, find_layouts
from streamd.dataset.manifest.types import WEIGHTS_LABEL, ScannedSamples
from streamd.dataset.sources import LabelSource, ListingRequest
from streamd.dataset.stream_samples import find_group_column
from streamd.errors import ConfigError, MissingExtraError

_log: Final = logging.getLogger("streamd.sources")


def scan_source(request: ListingRequest, progress: Callable[[int], None]) -> ScannedSamples:
    """Lists the samples of all parts of a source; `select_part_samples` keeps those of one stream.

    `progress` is called now and then with the number of files seen so far. Raises ConfigError for anything wrong with
    the data, with what to do about it.
    """
    # Sources with columns read labels and weights themselves. All others read only their own, and files of labels are
    # added afterwards, when the number of samples is known.
    if request.source.has_columns:
        return _extract_weights(_scan_by_kind(request, _collect_labels_and_weights(request), progress))
    wanted = _collect_labels_and_weights(request)
    files = {name: each for name, each in wanted.items() if each.file}
    if request.weights is not None and WEIGHTS_LABEL not in files:
        key, kind = f"streams.{request.name}.weights", request.source.kind
        if not request.source.has_fields:
            raise ConfigError(
                f"{key}: a {kind} has no column {request.weights.source!r}; use np.save to save one number per sample, "
                "in the order of the images, and write weights: FILE.npy"
            )
        if request.labels is None:
            raise ConfigError(
                f"{key}: the weights of kind {kind} are read with its labels, but the stream has no key labels; add "
                "labels, or write labels: {}"
            )
    labels = None if request.labels is None else {name: each for name, each in wanted.items() if name not in files}
    scanned = _scan_by_kind(request, labels, progress)
    if not files:
        return _extract_weights(scanned)
    with _name_missing_extra(f"the arrays next to stream {request.name!r}"):
        from streamd.dataset.labels.npy_columns import add_labels_from_files  # noqa: PLC0415 - loads pyarrow, which takes a while
    return _extract_weights(add_labels_from_files(request, files, scanned))


def _collect_labels_and_weights(stream: ListingRequest) -> Mapping[str, LabelSource]:
    """Returns the configured labels, and the weights among them."""
    labels = stream.labels or {}
    return labels if stream.weights is None else {**labels, WEIGHTS_LABEL: stream.weights}


def _extract_weights(scanned: ScannedSamples) -> ScannedSamples:
    """Returns the scanned samples with their weights moved from `labels` to `weights`."""
    if WEIGHTS_LABEL not in scanned.labels:
        return scanned
    return replace(
        scanned,
        labels={name: values for name, values in scanned.labels.items() if name != WEIGHTS_LABEL},
        specs={name: spec for name, spec in scanned.specs.items() if name != WEIGHTS_LABEL},
        weights=np.asarray(scanned.labels[WEIGHTS_LABEL], np.float32),
    )


def _scan_by_kind(
    request: ListingRequest, labels: Mapping[str, LabelSource] | None, progress: Callable[[int], None]
) -> ScannedSamples:
    name, kind = request.name, request.source.kind
    by = find_group_column(request)
    grouping = () if by is None else (by,)  # only the functions of sources with a table take this argument
    found = FORMATS.get(kind)
    if found is None:
        known = ", ".join(FORMATS)
        raise ConfigError(f"streams.{name}.source: kind {kind} is not served by this version; use one of {known}")
    with _name_missing_extra(f"{found.read_by_pyarrow} of stream {name!r}", f"the samples of stream {name!r}"):
        module, _, function = found.function.partition(":")
        scan_format = getattr(import_module(module), function)
    images = {"images": request.images} if request.images and request.source.has_own_images else {}
    numbers = {} if request.raw is None else {"raw": request.raw}  # only the functions of arrays take this argument
    scanned: ScannedSamples = scan_format(name, request.source, labels, progress, *grouping, **images, **numbers)
    if isinstance(request.source, FolderSource):
        _warn_of_other_layout(request, request.source)
    return add_pattern_images(request, scanned, progress) if request.images else scanned


def _warn_of_other_layout(request: ListingRequest, source: FolderSource) -> None:
    """Warns where a folder lies as another kind of data does, of which `kind: folder` would make classes or samples."""
    # With a pattern the user has said where masks are; without labels, that parts and classes do not matter.
    if any(image.is_pattern for image in (request.images or {}).values()):
        return
    try:
        found = find_layouts(FolderTree(Path(os.path.abspath(source.path))), structure=request.labels != {})  # noqa: PTH100 - resolve() follows links
    except (OSError, ConfigError):  # the listing has succeeded, and this is only advice
        return
    for each in found:
        _log.warning(
            "streams.%s.source.path: %s, which looks like %s, but kind folder takes %s; %s",
            request.name,
            each.seen,
            each.name,
            "each picture as a sample" if request.labels == {} else "each sub-folder as a class",
            each.remedy,
        )


@contextmanager
def _name_missing_extra(by_pyarrow: str, by_lmdb: str = "") -> Iterator[None]:
    """Turns a missing library into a MissingExtraError that names the extra to install, and the purpose."""
    try:
        yield
    except ModuleNotFoundError as error:
        match (error.name or "").partition(".")[0]:
            case "pyarrow":
                raise MissingExtraError("pyarrow", "serve", by_pyarrow) from error
            case "lmdb":
                raise MissingExtraError("lmdb", "lmdb", by_lmdb) from error
        raise
