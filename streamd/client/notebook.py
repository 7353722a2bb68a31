"""A batch in a notebook: its pictures with their labels, as self-contained HTML.

A trainer may lack Pillow, so pictures are encoded as PNG here: https://www.w3.org/TR/png-3/. Colours are the notebook's
own, or readable on both light and dark backgrounds.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamd.core.captions import Caption, CaptionedBatch, build_captions, format_batch_heading
from streamd.core.sampler import PAD_ID
from streamd.core.shown_pixels import build_shown_pixels, compute_shown_size
from streamd.core.text import escape_unprintable

_SHOWN_ROWS: Final = 32
_LARGE_PX: Final = 160  # images with a longer side are subsampled to fit
_SHOWN_PX: Final = 112  # the longer side on the page
_MAX_BYTES: Final = 1_300_000  # pictures in one notebook cell, base64: notebooks are saved with their output

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 3: 2}  # channels: greyscale, truecolour
_UP: Final = 2  # PNG's filter that stores each byte as its difference from the one above
_COMPRESSION: Final = 6

_MARK_COLOURS: Final = {"substituted": "#d97706", "masked": "#dc2626", "no sample": "#888", "weight 0": "#888"}
_TIP_CHARS: Final = 300
_NAME_CHARS: Final = 18  # the end of a file's name that fits below a picture
_CLIPPED: Final = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


def render_batch(batch: CaptionedBatch, find_names: Callable[[Sequence[int]], Mapping[int, str]]) -> str:
    """Renders up to 32 rows of a batch, fewer if the pictures would exceed the size limit; all text is escaped.

    `find_names` returns the file names that it knows, by sample id.
    """
    tiles, left_bytes, captions = [], _MAX_BYTES, build_captions(batch, _SHOWN_ROWS)
    files = find_names([caption.sample_id for caption in captions if caption.sample_id != PAD_ID])
    for row, caption in enumerate(captions):
        picture = _encode_picture(subsample_image(build_shown_pixels(batch.images[row], batch.spec.image)))
        left_bytes -= len(picture)
        if left_bytes < 0:
            break
        tiles.append(
            _render_tile(picture, compute_shown_size(batch.spec.image), caption, files.get(caption.sample_id, ""))
        )
    return _render_heading_and_tiles(batch, tiles)


def render_batch_page(batch: CaptionedBatch, files: Mapping[int, str]) -> str:
    """Renders a complete HTML page with every row of a batch at full resolution; `files` are names by sample id."""
    shape = compute_shown_size(batch.spec.image)
    tiles = [
        _render_tile(
            _encode_picture(build_shown_pixels(batch.images[row], batch.spec.image)),
            shape,
            caption,
            files.get(caption.sample_id, ""),
        )
        for row, caption in enumerate(build_captions(batch, len(batch)))
    ]
    head = f'<head><meta charset="utf-8"><title>{_escape_text(format_batch_heading(batch))}</title></head>'
    return f"<!doctype html><html>{head}<body>{_render_heading_and_tiles(batch, tiles)}</body></html>\n"


def _render_heading_and_tiles(batch: CaptionedBatch, tiles: Sequence[str]) -> str:
    more = len(batch) - len(tiles)
    return _render_div(
        "font:12px/1.4 system-ui,sans-serif",
        _render_div("font-weight:600;margin:4px 0 8px", _escape_text(format_batch_heading(batch))),
        _render_div("display:flex;flex-wrap:wrap;gap:10px", *tiles),
        _render_div("margin-top:8px;opacity:.7", f"and {more:,} more") if more else "",
    )


def _encode_picture(image: npt.NDArray[np.uint8]) -> str:
    return base64.b64encode(encode_png(image)).decode()


def _escape_text(text: str) -> str:
    return html.escape(escape_unprintable(text))


def _render_div(style: str, *inside: str, title: str = "") -> str:
    tip = f' title="{_escape_text(title[:_TIP_CHARS])}"' if title else ""
    return f'<div style="{style}"{tip}>{"".join(inside)}</div>'


def _render_tile(picture: str, shape: tuple[int, int], caption: Caption, file: str = "") -> str:
    height, width = (max(1, round(side * _SHOWN_PX / max(shape))) for side in shape)
    edge = f"2px solid {_MARK_COLOURS[caption.mark]}" if caption.mark else "1px solid rgba(128,128,128,.4)"
    style = f"image-rendering:pixelated;outline:{edge};opacity:{1 if caption.weight else 0.35}"
    lines = [_render_div(_CLIPPED, _escape_text(line), title=line) for line in caption.labels]
    if caption.sample_id != PAD_ID:
        lines.append(_render_div("opacity:.6", f"#{caption.sample_id}"))
    if file:
        end = file if len(file) <= _NAME_CHARS else f"…{file[1 - _NAME_CHARS :]}"
        lines.append(_render_div(f"opacity:.6;{_CLIPPED}", _escape_text(end), title=file))
    if caption.mark:
        why = f"{caption.bad.file}: {caption.bad.reason}" if caption.bad else ""
        lines.append(_render_div(f"color:{_MARK_COLOURS[caption.mark]};font-weight:600", caption.mark, title=why))
    source = f"data:image/png;base64,{picture}"
    image = f'<img width="{width}" height="{height}" alt="" style="{style}" src="{source}">'
    return _render_div(f"width:{_SHOWN_PX}px", image, *lines)


def subsample_image(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns every n-th row and column of an image (H, W, C), so that no side exceeds 160 pixels."""
    step = -(-max(image.shape[:2]) // _LARGE_PX)
    return image[::step, ::step]


def encode_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Encodes an image (H, W, C) uint8, with one channel or three, as the bytes of a PNG file."""
    height, width, channels = image.shape
    rows = image.reshape(height, width * channels)
    filtered = np.full((height, 1 + width * channels), _UP, dtype=np.uint8)
    filtered[:, 1:] = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))  # modulo 256, as PNG requires
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    packed = zlib.compress(filtered.tobytes(), _COMPRESSION)
    return (
        _SIGNATURE
        + _encode_png_chunk(b"IHDR", header)
        + _encode_png_chunk(b"IDAT", packed)
        + _encode_png_chunk(b"IEND", b"")
    )


def _encode_png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
