"""A batch in a notebook: its pictures with their labels, as self-contained HTML.

Masks are laid over their pictures; boxes and points are drawn on them as SVG. A trainer may lack Pillow, so pictures
are encoded as PNG here: https://www.w3.org/TR/png-3/. Colours are the notebook's own, or readable on both light and
dark backgrounds.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from streamd.core.captions import Caption, CaptionedBatch, build_captions, format_batch_heading
from streamd.core.class_colours import choose_text_colour, format_hex_colour
from streamd.core.sampler import PAD_ID
from streamd.core.shown_pictures import BatchPictures, ShownBox, ShownPicture
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

_MARK_COLOURS: Final = {"substituted": "#d97706", "masked": "#dc2626", "no sample": "#888", "weight 0": "#888"}
_TIP_CHARS: Final = 300
_NAME_CHARS: Final = 18  # the end of a file's name that fits below a picture
_CLIPPED: Final = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap"


def render_batch(batch: CaptionedBatch, find_names: Callable[[Sequence[int]], Mapping[int, str]]) -> str:
    """Renders up to 32 rows of a batch, fewer if the pictures would exceed the size limit; all text is escaped.

    `find_names` returns the file names that it knows, by sample id.
    """
    tiles, left_bytes, captions = [], _MAX_BYTES, build_captions(batch, _SHOWN_ROWS)
    pictures = BatchPictures(batch, len(captions), _LARGE_PX)
    files = find_names([caption.sample_id for caption in captions if caption.sample_id != PAD_ID])
    for row, caption in enumerate(captions):
        shown = [_render_picture(each, caption) for each in pictures.build_row(row)]
        left_bytes -= sum(map(len, shown))
        if left_bytes < 0:
            break
        tiles.append(_render_tile(shown, caption, files.get(caption.sample_id, "")))
    return _render_heading_and_tiles(batch, pictures, tiles)


def render_batch_page(batch: CaptionedBatch, files: Mapping[int, str]) -> str:
    """Renders a complete HTML page with every row of a batch at full resolution; `files` are names by sample id."""
    pictures = BatchPictures(batch, len(batch))
    tiles = [
        _render_tile(
            [_render_picture(each, caption) for each in pictures.build_row(row)],
            caption,
            files.get(caption.sample_id, ""),
        )
        for row, caption in enumerate(build_captions(batch, len(batch)))
    ]
    head = f'<head><meta charset="utf-8"><title>{_escape_text(format_batch_heading(batch))}</title></head>'
    return f"<!doctype html><html>{head}<body>{_render_heading_and_tiles(batch, pictures, tiles)}</body></html>\n"


def _render_heading_and_tiles(batch: CaptionedBatch, pictures: BatchPictures, tiles: Sequence[str]) -> str:
    more = len(batch) - len(tiles)
    return _render_div(
        "font:12px/1.4 system-ui,sans-serif",
        _render_div("font-weight:600;margin:4px 0 8px", _escape_text(format_batch_heading(batch))),
        *(_render_div("margin:-4px 0 8px;opacity:.7", _escape_text(note)) for note in pictures.notes),
        _render_legend(pictures),
        _render_div("display:flex;flex-wrap:wrap;gap:10px", *tiles),
        _render_div("margin-top:8px;opacity:.7", f"and {more:,} more") if more else "",
    )


def _render_legend(pictures: BatchPictures) -> str:
    """Renders the classes of the masks with their colours; nothing where there are no masks."""
    classes, left_out = pictures.list_classes()
    entries = [
        _render_div(
            "",
            f'<span style="display:inline-block;width:10px;height:10px;margin-right:4px;'
            f'background:{format_hex_colour(each.colour)};outline:1px solid rgba(128,128,128,.6)"></span>',
            _escape_text(each.name),
        )
        for each in classes
    ]
    if left_out:
        entries.append(_render_div("", f"and {left_out:,} more classes"))
    return _render_div("display:flex;flex-wrap:wrap;gap:2px 12px;margin:-2px 0 8px", *entries) if entries else ""


def _escape_text(text: str) -> str:
    return html.escape(escape_unprintable(text))


def _render_div(style: str, *inside: str, title: str = "") -> str:
    tip = f' title="{_escape_text(title[:_TIP_CHARS])}"' if title else ""
    return f'<div style="{style}"{tip}>{"".join(inside)}</div>'


def _render_tile(pictures: Sequence[str], caption: Caption, file: str = "") -> str:
    lines = [_render_div(_CLIPPED, _escape_text(line), title=line) for line in caption.labels]
    if caption.sample_id != PAD_ID:
        lines.append(_render_div("opacity:.6", f"#{caption.sample_id}"))
    if file:
        end = file if len(file) <= _NAME_CHARS else f"…{file[1 - _NAME_CHARS :]}"
        lines.append(_render_div(f"opacity:.6;{_CLIPPED}", _escape_text(end), title=file))
    if caption.mark:
        why = f"{caption.bad.file}: {caption.bad.reason}" if caption.bad else ""
        lines.append(_render_div(f"color:{_MARK_COLOURS[caption.mark]};font-weight:600", caption.mark, title=why))
    # Long captions must not widen the tile, so they are cut at the width of its pictures.
    width = len(pictures) * _SHOWN_PX + (len(pictures) - 1) * _PICTURE_GAP_PX
    beside = "".join(pictures)
    if len(pictures) > 1:
        beside = _render_div(f"display:flex;flex-wrap:wrap;gap:{_PICTURE_GAP_PX}px", beside)
    return _render_div(f"width:{width}px;max-width:100%", beside, *lines)


def _render_picture(shown: ShownPicture, caption: Caption) -> str:
    """Renders one picture of a sample with its title, if it has one, and with its boxes and points over it."""
    height, width = (max(1, round(side * _SHOWN_PX / max(shown.plan.size))) for side in shown.plan.size)
    edge = f"2px solid {_MARK_COLOURS[caption.mark]}" if caption.mark else "1px solid rgba(128,128,128,.4)"
    style = f"display:block;image-rendering:pixelated;outline:{edge};opacity:{1 if caption.weight else 0.35}"
    source = f"data:image/png;base64,{base64.b64encode(encode_png(shown.blend_mask())).decode()}"
    image = f'<img width="{width}" height="{height}" alt="" style="{style}" src="{source}">'
    if shown.boxes or shown.points:
        image = _render_div(f"position:relative;width:{width}px", image, _render_drawing(shown))
    if not shown.plan.title:
        return image
    title = _render_div(f"opacity:.6;{_CLIPPED}", _escape_text(shown.plan.title), title=shown.plan.title)
    return _render_div(f"width:{_SHOWN_PX}px", title, image)


def _render_drawing(shown: ShownPicture) -> str:
    """Renders boxes and points as SVG of the picture's size, in pixels of the delivered image."""
    height, width = shown.plan.size
    unit = max(height, width) / _SHOWN_PX  # a pixel of the page
    marks = [_render_box(box, unit) for box in shown.boxes]
    marks += [
        f'<circle cx="{point.x:.2f}" cy="{point.y:.2f}" r="{2.5 * unit:.2f}" stroke="#000" '
        f'stroke-width="{0.7 * unit:.2f}" fill="{format_hex_colour(point.colour)}"/>'
        for point in shown.points
    ]
    style = "position:absolute;inset:0;width:100%;height:100%"
    return f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" style="{style}">{"".join(marks)}</svg>'


def _render_box(box: ShownBox, unit: float) -> str:
    colour = format_hex_colour(box.colour)
    rim = format_hex_colour(choose_text_colour(box.colour))
    place = (
        f'x="{box.left:.2f}" y="{box.top:.2f}" width="{box.right - box.left:.2f}" height="{box.bottom - box.top:.2f}"'
    )
    # The name lies within the box, at its upper left corner, since an SVG is cut at its edges.
    at = f'x="{box.left + 2 * unit:.2f}" y="{box.top + 9 * unit:.2f}"'
    return (
        f'<rect {place} fill="none" stroke="#000" stroke-width="{3 * unit:.2f}" opacity=".6"/>'
        f'<rect {place} fill="none" stroke="{colour}" stroke-width="{1.5 * unit:.2f}"/>'
        f'<text {at} font-size="{9 * unit:.2f}" fill="{colour}" stroke="{rim}" stroke-width="{2 * unit:.2f}" '
        f'paint-order="stroke">{_escape_text(box.name)}</text>'
    )


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
