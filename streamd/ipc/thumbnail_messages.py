"""The daemon's request to the process that draws bad samples, and the prefix of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from streamd.core.spec import StreamSpec

LENGTH_PREFIX: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class ThumbnailRequest:
    """The samples to draw: `ids` of the list at `manifest`, as images of `spec`."""

    manifest: str
    spec: StreamSpec
    ids: list[int]
