"""Settings that are valid and that this version does not serve: each is named, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import parse_npy_path
from streamd.core.text import is_encodable


def list_unserved_settings(config: Config) -> list[str]:
    """Returns a sentence, with its key path, for each setting that is valid but not served by this version."""
    return [
        f"{place}: {what} not served by this version; {remedy}"
        for place, what, remedy in _iterate_unserved_settings(config)
    ]


_UnservedSetting = tuple[str, str, str]  # key path, what "... is", what to do instead


def _iterate_unserved_settings(config: Config) -> Iterator[_UnservedSetting]:
    if sum(endpoint.startswith("ipc://") for endpoint in config.listen or ()) > 1:
        yield "listen", "more than one ipc:// endpoint is", "name one"
    if not is_encodable(str(config.base_folder)):  # the listing process and the workers receive the path in UTF-8
        yield (
            "streams",
            f"a configuration in {str(config.base_folder)!a}, whose name is not UTF-8, is",
            "keep it elsewhere",
        )
    for name, stream in config.streams.items():
        for place, what, remedy in _iterate_unserved_stream_settings(stream):
            yield f"streams.{name}.{place}", what, remedy


def _iterate_unserved_stream_settings(stream: StreamConfig) -> Iterator[_UnservedSetting]:
    """Yields labels and weights from arrays that this version cannot read, and a pace.

    A .npy file may stand beside any source; a named array must lie in a source of kind hdf5.
    """
    froms = {f"labels.{name}": label.source for name, label in (stream.labels or {}).items()}
    if stream.weights is not None:
        froms["weights"] = stream.weights.source
    for key, source in froms.items():
        if isinstance(source, tuple) and any(_is_stored_array_name(each) or parse_npy_path(each) for each in source):
            yield f"{key}.from", "an array among columns is", "use columns, or one array of several numbers per row"
        elif stream.source.kind != "hdf5" and _is_stored_array_name(source):
            yield f"{key}.from", f"an array of kind {stream.source.kind} is", "use a column, or a file: labels.npy"
    if stream.pace.lockstep_s is not None:
        yield "pace", "lockstep is", "use free"


def _is_stored_array_name(source: object) -> bool:
    """Whether `from` names an array in a file, such as /labels."""
    return isinstance(source, str) and source.startswith("/") and parse_npy_path(source) is None
