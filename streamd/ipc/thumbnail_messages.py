"""What the daemon asks of the process that draws bad samples, and how it answers."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from streamd.core.spec import StreamSpec

LENGTH_PREFIX: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class ThumbnailRequest:
    """Which samples of which list."""

    manifest: str
    spec: StreamSpec
    ids: list[int]
