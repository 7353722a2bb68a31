"""A batch as self-contained HTML: in a notebook, and as a page of its own.

Masks are laid over their pictures; boxes and points are drawn on them as SVG. A trainer may lack Pillow, so pictures
are encoded as PNG here: https://www.w3.org/TR/png-3/. Colours are the notebook's own, or readable on both light and
dark backgrounds.
"""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.client.batch import FindNames
from streamd.core.display import (
    MARK_COLOURS,
    BatchDisplay,
    Caption,
    ShownBatch,
    ShownPicture,
    choose_text_colour,
    format_batch_heading,
    format_hex_colour,
    scale_size,
)
from streamd.core.sampler import PAD_ID
from streamd.core.text import escape_unprintable

_SHOWN_ROWS: Final = 32
_LARGE_PX: Final = 160  # images with a longer side are subsampled to fit
_SHOWN_PX: Final = 112  # the longer side on the page
_PICTURE_GAP_PX: Final = 4  # between the pictures of one sample
_MAX_BYTES: Final = 1_300_000  # pictures in one notebook cell, base64: notebooks are saved with their output

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 3: 2}  # channels: greyscale, truecolour
_UP: Final = 2  # PNG's filter that stores each byte as its difference from the one above
_COMPRESSION: Final = 6

_TIP_CHARS: Final = 300
_NAME_CHARS: Final = 18  # the end of a file's name that fits below a picture
_CLIPPED: Final = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
_SWATCH: Final = "display:inline-block;width:10px;height:10px;margin-right:4px;outline:1px solid rgba(128,128,128,.6)"


def render_batch_page(batch: ShownBatch, files: Mapping[int, str]) -> str:
    """Renders a complete HTML page with every row of a batch at full resolution; `files` are names by sample id."""
    head = f'<head><meta charset="utf-8"><title>{_escape_text(format_batch_heading(batch))}</title></head>'
    body = render_batch(batch, lambda _: files, len(batch), None, math.inf)
    return f"<!doctype html><html>{head}<body>{body}</body></html>\n"


def render_batch(
    batch: ShownBatch,
    find_names: FindNames,
    rows: int = _SHOWN_ROWS,
    max_side: int | None = _LARGE_PX,
    max_bytes: float = _MAX_BYTES,
) -> str:
    """Renders the first rows of a batch with a heading, by default as a notebook shows it; all text is escaped.

    find_names: returns the file names that it knows, by sample id.
    rows: how many rows at most; fewer if their pictures would exceed `max_bytes`.
    max_side: the longer side in pixels to which larger images are subsampled; None for none.
    """
    display = BatchDisplay(batch, rows, max_side)
    files = find_names([caption.sample_id for caption in display.captions if caption.sample_id != PAD_ID])
    tiles: list[str] = []
    for row, caption in enumerate(display.captions):
        pictures = [_render_picture(each, caption) for each in display.build_row(row)]
        max_bytes -= sum(map(len, pictures))
        if max_bytes < 0:
            break
        # Below the pictures are the row's labels, sample id, file and mark.
        lines = [_render_div(_CLIPPED, _escape_text(line), title=line) for line in caption.labels]
        if caption.sample_id != PAD_ID:
            lines.append(_render_div("opacity:.6", f"#{caption.sample_id}"))
        if file := files.get(caption.sample_id, ""):
            end = file if len(file) <= _NAME_CHARS else f"…{file[1 - _NAME_CHARS :]}"
            lines.append(_render_div(f"opacity:.6;{_CLIPPED}", _escape_text(end), title=file))
        if caption.mark:
            why = f"{caption.bad.file}: {caption.bad.reason}" if caption.bad else ""
            colour = format_hex_colour(MARK_COLOURS[caption.mark])
            lines.append(_render_div(f"color:{colour};font-weight:600", caption.mark, title=why))
        # Long captions must not widen the tile, so they are cut at the width of its pictures.
        width = len(pictures) * _SHOWN_PX + (len(pictures) - 1) * _PICTURE_GAP_PX
        beside = "".join(pictures)
        if len(pictures) > 1:
            beside = _render_div(f"display:flex;flex-wrap:wrap;gap:{_PICTURE_GAP_PX}px", beside)
        tiles.append(_render_div(f"width:{width}px;max-width:100%", beside, *lines))

    legend = ""
    for name, rgb in display.list_classes():
        swatch = "" if rgb is None else f'<span style="{_SWATCH};background:{format_hex_colour(rgb)}"></span>'
        legend += _render_div("", swatch, _escape_text(name))
    more = len(batch) - len(tiles)
    return _render_div(
        "font:12px/1.4 system-ui,sans-serif",
        _render_div("font-weight:600;margin:4px 0 8px", _escape_text(format_batch_heading(batch))),
        *(_render_div("margin:-4px 0 8px;opacity:.7", _escape_text(note)) for note in display.notes),
        _render_div("display:flex;flex-wrap:wrap;gap:2px 12px;margin:-2px 0 8px", legend) if legend else "",
        _render_div("display:flex;flex-wrap:wrap;gap:10px", *tiles),
        _render_div("margin-top:8px;opacity:.7", f"and {more:,} more") if more else "",
    )


def _escape_text(text: str) -> str:
    return html.escape(escape_unprintable(text))


def _render_div(style: str, *inside: str, title: str = "") -> str:
    tip = f' title="{_escape_text(title[:_TIP_CHARS])}"' if title else ""
    return f'<div style="{style}"{tip}>{"".join(inside)}</div>'


def _render_picture(shown: ShownPicture, caption: Caption) -> str:
    """Renders one picture of a sample with its title, if it has one, and with its boxes and points over it."""
    height, width = scale_size(shown.plan.size, _SHOWN_PX)
    edge = "1px solid rgba(128,128,128,.4)"
    if caption.mark:
        edge = f"2px solid {format_hex_colour(MARK_COLOURS[caption.mark])}"
    style = f"display:block;image-rendering:pixelated;outline:{edge};opacity:{1 if caption.weight else 0.35}"
    source = f"data:image/png;base64,{base64.b64encode(encode_png(shown.blend_mask())).decode()}"
    image = f'<img width="{width}" height="{height}" alt="" style="{style}" src="{source}">'

    # Boxes and points are SVG of the picture's size, in pixels of the delivered image.
    unit = max(shown.plan.size) / _SHOWN_PX  # a pixel of the page
    marks = ""
    for box in shown.boxes:
        colour, rim = format_hex_colour(box.colour), format_hex_colour(choose_text_colour(box.colour))
        across, down = box.right - box.left, box.bottom - box.top
        place = f'x="{box.left:.2f}" y="{box.top:.2f}" width="{across:.2f}" height="{down:.2f}" fill="none"'
        # The name lies within the box, at its upper left corner, since an SVG is cut at its edges.
        at = f'x="{box.left + 2 * unit:.2f}" y="{box.top + 9 * unit:.2f}"'
        marks += (
            f'<rect {place} stroke="#000" stroke-width="{3 * unit:.2f}" opacity=".6"/>'
            f'<rect {place} stroke="{colour}" stroke-width="{1.5 * unit:.2f}"/>'
            f'<text {at} font-size="{9 * unit:.2f}" fill="{colour}" stroke="{rim}" stroke-width="{2 * unit:.2f}" '
            f'paint-order="stroke">{_escape_text(box.name)}</text>'
        )
    for point in shown.points:
        marks += (
            f'<circle cx="{point.x:.2f}" cy="{point.y:.2f}" r="{2.5 * unit:.2f}" stroke="#000" '
            f'stroke-width="{0.7 * unit:.2f}" fill="{format_hex_colour(point.colour)}"/>'
        )
    if marks:
        view_box = f'viewBox="0 0 {shown.plan.size[1]} {shown.plan.size[0]}" preserveAspectRatio="none"'
        drawing = f'<svg {view_box} style="position:absolute;inset:0;width:100%;height:100%">{marks}</svg>'
        image = _render_div(f"position:relative;width:{width}px", image, drawing)
    if not shown.plan.title:
        return image
    title = _render_div(f"opacity:.6;{_CLIPPED}", _escape_text(shown.plan.title), title=shown.plan.title)
    return _render_div(f"width:{_SHOWN_PX}px", title, image)


def encode_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Encodes an image (H, W, C) uint8, with one channel or three, as the bytes of a PNG file."""
    height, width, channels = image.shape
    rows = image.reshape(height, width * channels)
    filtered = np.full((height, 1 + width * channels), _UP, dtype=np.uint8)
    filtered[:, 1:] = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))  # modulo 256, as PNG requires
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    encoded = _SIGNATURE
    for kind, data in (b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), _COMPRESSION)), (b"IEND", b""):
        encoded += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return encoded
