"""What a configuration may say and this version does not do yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import npy_file
from streamd.core.text import is_text


def not_served(config: Config) -> list[str]:
    """One sentence, with its key path, for each thing in `config` that is valid but not served by this version."""
    return [f"{place}: {what} not served by this version; {remedy}" for place, what, remedy in _all(config)]


_Finding = tuple[str, str, str]  # key path, what ("... is"), what to do instead


def _all(config: Config) -> Iterator[_Finding]:
    for endpoint in config.listen or ():
        if not endpoint.startswith("ipc://"):
            yield "listen", f"{endpoint} is", "use ipc:// endpoints"
    if sum(endpoint.startswith("ipc://") for endpoint in config.listen or ()) > 1:
        yield "listen", "more than one endpoint is", "name one"
    if config.curve is not None:
        yield "curve", "CURVE keys are", "leave curve out"
    if config.engine.kind != "local":
        yield "engine", f"kind {config.engine.kind} is", "use local"
    if not is_text(str(config.base)):  # the processes that list and decode are told of it in UTF-8
        yield "streams", f"a configuration in {str(config.base)!a}, no name in UTF-8, is", "keep it elsewhere"
    for name, stream in config.streams.items():
        for place, what, remedy in _of_stream(stream):
            yield f"streams.{name}.{place}", what, remedy


def _of_stream(stream: StreamConfig) -> Iterator[_Finding]:
    yield from _of_arrays(stream)
    if stream.pace.lockstep_s is not None:
        yield "pace", "lockstep is", "use free"


def _of_arrays(stream: StreamConfig) -> Iterator[_Finding]:
    """Files of labels stand beside any source; arrays that have names, only in a file of kind hdf5."""
    froms = {f"labels.{name}": label.source for name, label in (stream.labels or {}).items()}
    if stream.weights is not None:
        froms["weights"] = stream.weights.source
    for key, source in froms.items():
        if isinstance(source, tuple) and any(_is_array(each) or npy_file(each) for each in source):
            yield f"{key}.from", "an array among columns is", "use columns, or one array of several numbers a row"
        elif stream.source.kind != "hdf5" and _is_array(source):
            yield f"{key}.from", f"an array of kind {stream.source.kind} is", "use a column, or a file: labels.npy"


def _is_array(source: object) -> bool:
    """Whether `from` names an array in a file."""
    return isinstance(source, str) and source.startswith("/") and npy_file(source) is None
