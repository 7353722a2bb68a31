"""Lists the samples of a source of any kind: all of its parts, before a stream selects its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

from streamd.dataset.formats import FORMATS
from streamd.dataset.labels.weights import collect_labels_and_weights, extract_weights, split_own_and_file_labels
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.sources import LabelSource, ListingRequest
from streamd.dataset.stream_samples import find_group_column
from streamd.errors import ConfigError, MissingExtraError


def scan_source(request: ListingRequest, progress: Callable[[int], None]) -> ScannedSamples:
    """Lists the samples of all parts of a source; `select_part_samples` keeps those of one stream.

    `progress` is called now and then with the number of files seen so far. Raises ConfigError for anything wrong with
    the data, with what to do about it.
    """
    # Sources with columns read labels and weights themselves. All others read only their own, and files of labels are
    # added afterwards, when the number of samples is known.
    if request.source.has_columns:
        return extract_weights(_scan_by_kind(request, collect_labels_and_weights(request), progress))
    labels, files = split_own_and_file_labels(request)
    scanned = _scan_by_kind(request, labels, progress)
    if not files:
        return extract_weights(scanned)
    with _name_missing_extra(f"the arrays beside stream {request.name!r}"):
        from streamd.dataset.labels.npy_columns import add_labels_from_files  # noqa: PLC0415 - loads pyarrow, which takes a while
    return extract_weights(add_labels_from_files(request, files, scanned))


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
    scanned: ScannedSamples = scan_format(name, request.source, labels, progress, *grouping)
    return scanned


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
