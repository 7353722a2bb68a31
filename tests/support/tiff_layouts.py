"""TIFFs in every layout that the format has, written number by number: an oracle that shares no code with a reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import imagecodecs
import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[Any]  # (height, width, samples)

_CODECS: Final = {5: "lzw_encode", 8: "zlib_encode", 32773: "packbits_encode"}
_SHORT: Final = 3
_LONG: Final = 4
_FORMATS: Final = {"u": 1, "i": 2, "f": 3}


@dataclass(frozen=True, slots=True)
class TiffLayout:
    """How a page stores its numbers; the fields are those of TIFF 6.0.

    photometric: 0 white is 0, 1 black is 0, 2 RGB, 3 palette, 5 CMYK.
    compression: 1 none, 5 LZW, 8 deflate, 32773 PackBits; others are said, and not done.
    """

    bits: int = 8
    photometric: int = 1
    planar: bool = False
    segment: tuple[int, int] | int | None = None  # a tile's (height, width), or the rows of a strip
    order: Literal["<", ">"] = "<"
    compression: int = 1
    predictor: int = 1
    fill_order: int = 1
    extra: tuple[int, ...] = ()

    def __str__(self) -> str:
        said = [f"{self.bits}bit", {0: "white0", 1: "grey", 2: "rgb", 3: "palette", 5: "cmyk"}[self.photometric]]
        said += ["planar"] * self.planar + [str(self.segment)] * (self.segment is not None)
        said += ["big"] * (self.order == ">") + [f"compression{self.compression}"] * (self.compression != 1)
        said += [f"predictor{self.predictor}"] * (self.predictor != 1) + ["reversed"] * (self.fill_order != 1)
        return "-".join([*said, *(f"extra{each}" for each in self.extra)]).replace(" ", "")


def write_tiff(levels: Levels, layout: TiffLayout, palette: Levels | None = None) -> bytes:
    """Returns a TIFF of one page that holds `levels`; `palette` is (colours, 3) of 16 bits."""
    height, width, samples = levels.shape
    tiled = isinstance(layout.segment, tuple)
    high, wide = layout.segment if isinstance(layout.segment, tuple) else (layout.segment or height, width)
    parts = [levels[:, :, [plane]] for plane in range(samples)] if layout.planar else [levels]
    segments = [_pack_segment(part, layout) for plane in parts for part in _cut(plane, high, wide, padded=tiled)]
    entries: list[tuple[int, int, list[int]]] = [
        (256, _LONG, [width]),
        (257, _LONG, [height]),
        (258, _SHORT, [layout.bits] * samples),
        (259, _SHORT, [layout.compression]),
        (262, _SHORT, [layout.photometric]),
        (277, _SHORT, [samples]),
        (284, _SHORT, [2 if layout.planar else 1]),
    ]
    if layout.fill_order != 1:
        entries.append((266, _SHORT, [layout.fill_order]))
    if layout.predictor != 1:
        entries.append((317, _SHORT, [layout.predictor]))
    if layout.extra:
        entries.append((338, _SHORT, [*layout.extra]))
    if palette is not None:
        entries.append((320, _SHORT, palette.T.ravel().tolist()))
    if levels.dtype.kind != "u":
        entries.append((339, _SHORT, [_FORMATS[levels.dtype.kind]] * samples))
    offsets, at = [], 8
    for segment in segments:
        offsets.append(at)
        at += len(segment) + len(segment) % 2
    entries += (
        [(322, _LONG, [wide]), (323, _LONG, [high]), (324, _LONG, offsets), (325, _LONG, [*map(len, segments)])]
        if tiled
        else [(273, _LONG, offsets), (278, _LONG, [high]), (279, _LONG, [*map(len, segments)])]
    )
    return _write_directory(sorted(entries), at, b"".join(each + bytes(len(each) % 2) for each in segments), layout)


def _write_directory(entries: list[tuple[int, int, list[int]]], at: int, pixels: bytes, layout: TiffLayout) -> bytes:
    order, directory, beyond = layout.order, b"", b""
    end = at + 2 + 12 * len(entries) + 4
    for tag, kind, values in entries:
        stored = struct.pack(f"{order}{len(values)}{'H' if kind == _SHORT else 'I'}", *values)
        if len(stored) > 4:
            directory += struct.pack(f"{order}HHII", tag, kind, len(values), end + len(beyond))
            beyond += stored + bytes(len(stored) % 2)
        else:
            directory += struct.pack(f"{order}HHI", tag, kind, len(values)) + stored.ljust(4, b"\0")
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, at)
    return head + pixels + struct.pack(f"{order}H", len(entries)) + directory + bytes(4) + beyond


def _cut(plane: Levels, high: int, wide: int, *, padded: bool) -> Iterator[Levels]:
    for top in range(0, plane.shape[0], high):
        for left in range(0, plane.shape[1], wide):
            part = plane[top : top + high, left : left + wide]
            missing = [(0, high - part.shape[0]), (0, wide - part.shape[1]), (0, 0)]
            yield np.pad(part, missing, mode="edge") if padded else part


def _pack_segment(part: Levels, layout: TiffLayout) -> bytes:
    """Packs a strip or a tile: differences, then bits or bytes in the file's order, then the compression."""
    if layout.predictor == 2:
        whole = part.view(f"u{part.itemsize}")
        part = np.diff(whole, axis=1, prepend=np.zeros_like(whole[:, :1]))
    if layout.bits in {8, 16, 32, 64}:
        data = part.astype(part.dtype.newbyteorder(layout.order)).tobytes()
    else:
        rows = part.reshape(part.shape[0], -1, 1)
        bits = (rows.astype(np.uint32) >> np.arange(layout.bits - 1, -1, -1)) & 1
        data = np.packbits(bits.astype(np.uint8).reshape(part.shape[0], -1), axis=1).tobytes()
    name = _CODECS.get(layout.compression)
    packed: bytes = data if name is None else getattr(imagecodecs, name)(data)
    # The order of bits concerns the bytes of the file, after compression.
    return packed if layout.fill_order == 1 else bytes(int(f"{each:08b}"[::-1], 2) for each in packed)
