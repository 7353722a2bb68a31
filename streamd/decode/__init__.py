"""From a file's bytes to a row of a slot: one decoder a format, chosen by content, never by name."""

from __future__ import annotations

from streamd.decode.choose import BadImageError, decode_into

__all__ = ["BadImageError", "decode_into"]
