"""What a configuration may say and this version does not do yet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_parts import LabelConfig

_SOURCES: Final = ("folder", "table", "filelist", "npy")


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
    if config.monitor is not None:
        yield "monitor", "the monitor is", "leave monitor out"
    for name, stream in config.streams.items():
        for place, what, remedy in _of_stream(stream):
            yield f"streams.{name}.{place}", what, remedy


def _of_stream(stream: StreamConfig) -> Iterator[_Finding]:
    source = stream.source
    if source.kind not in _SOURCES:
        yield "source", f"kind {source.kind} is", "use folder, table, filelist or npy"
    yield from _of_labels(stream.labels or {}, files=source.kind == "npy")
    if stream.shuffle.kind == "chunk":
        yield "shuffle", "kind chunk is", "use full or none"
    if stream.transform is not None:
        yield "transform", "a transform in the daemon is", "augment in the trainer's model"
    if stream.pace.lockstep_s is not None:
        yield "pace", "lockstep is", "use free"


def _of_labels(labels: Mapping[str, LabelConfig], *, files: bool) -> Iterator[_Finding]:
    """`files`: whether the source takes labels from .npy files."""
    for name, label in labels.items():
        if files and label.file is not None:
            continue
        sources = label.source if isinstance(label.source, tuple) else (label.source or "",)
        if any(source.startswith("/") or source.endswith(".npy") for source in sources):
            yield f"labels.{name}.from", "an array or a file is", "use a column"
