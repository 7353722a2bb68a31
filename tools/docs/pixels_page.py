"""The table in docs/pixels.md: what one pixel of a golden file was, and what a trainer gets for it.

`scripts/docs pixels` writes it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from golden import FILES
from golden_files import deep, four_inks, picture, with_alpha
from PIL import Image
from support.smooth_pictures import decoded

from streamd.core.spec import ImageSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pixels.md"
BEGIN, END = "<!-- scripts/docs pixels writes from here -->", "<!-- to here -->"

Place = tuple[int, int]
USUAL: Place = (12, 8)
ONE_TRANSPARENT: Place = (20, 9)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. `stored` is what the pixel at `place` (column, row) was when the file was made."""

    what: str
    file: str
    stored: object
    note: str
    place: Place = USUAL


def jpegs() -> list[Line]:
    rgb, inks = picture().getpixel(USUAL), four_inks().getpixel(USUAL)
    grey = picture().convert("L").getpixel(USUAL)
    return [
        Line(
            "JPEG, colour", "no-subsampling.jpg", rgb, "any subsampling, baseline or progressive; L is the stored luma"
        ),
        Line("JPEG that stores RGB", "stored-as-rgb.jpg", rgb, "L by the weights below"),
        Line("JPEG, grey", "grey.jpg", grey, "L is what is stored"),
        Line("JPEG, CMYK", "cmyk.jpg", inks, "read as inverted, with or without Adobe's marker"),
        Line("JPEG, YCCK", "ycck.jpg", inks, "as CMYK"),
    ]


def eight_bits() -> list[Line]:
    """Lossless, up to 8 bits a channel."""
    rgb = picture()
    grey, few = rgb.convert("L"), rgb.quantize(16).getpixel(USUAL)
    layered, grey_layered = (with_alpha(opaque).getpixel(USUAL) for opaque in (rgb, grey))
    bit, hidden = grey.convert("1").getpixel(USUAL), rgb.getpixel(ONE_TRANSPARENT)
    on_white = (
        "composed on white; so are a GIF's transparent colour and the area that a GIF's first frame does not cover"
    )
    return [
        Line("PNG, WebP, TIFF, BMP, PPM: RGB", "rgb.png", rgb.getpixel(USUAL), "the stored pixels, unchanged"),
        Line("the same with alpha", "rgba.png", layered, "composed on white; a TIFF may have premultiplied alpha"),
        Line("PNG, TIFF: grey with alpha", "grey-alpha.png", grey_layered, "laid on white"),
        Line("PNG, TIFF, BMP, PGM: grey", "grey.png", grey.getpixel(USUAL), "2 and 4 bits are spread over 0 to 255"),
        Line("PNG, TIFF, BMP, PBM: 1 bit", "one-bit.png", bit, "0 or 255"),
        Line("PNG, GIF, TIFF, BMP: palette", "palette.png", few, "the colour at that place of the palette"),
        Line("PNG: palette with alpha", "palette-transparent.png", few, on_white),
        Line("PNG: a transparent colour", "rgb-one-transparent.png", hidden, "white", ONE_TRANSPARENT),
    ]


def deep_levels() -> list[Line]:
    """More than 8 bits a channel, or a white of the file's own."""
    column, row = USUAL
    level = int(deep()[row, column])
    colour = tuple(int(plane[row, column]) for plane in (deep(), deep()[::-1], deep()[:, ::-1]))
    share = round(level / 65535, 4)
    return [
        Line(
            "PNG, TIFF: 16 bits, grey",
            "sixteen-bits.png",
            level,
            "65535 is white; rounded to the nearest of 256 levels",
        ),
        Line("PNG, TIFF: 16 bits a colour", "sixteen-bits-rgb.png", colour, "the high byte of each"),
        Line("TIFF: 0 is white", "sixteen-bits-white-is-zero.tif", level, "inverted, at any bit depth"),
        Line("TIFF: 32-bit integers", "whole-numbers.tif", level, "65535 is white; beyond it the image is bad"),
        Line("TIFF: floating point", "fractions.tif", share, "1.0 is white; beyond 0 to 1 the image is bad"),
        Line(
            "PGM, PPM with another maximum", "white-is-1000.pgm", level % 1001, "the file says what white is, here 1000"
        ),
    ]


def others() -> list[Line]:
    rgb = picture().getpixel(USUAL)
    return [
        Line("TIFF: CMYK", "cmyk.tif", four_inks().getpixel(USUAL), "without a colour profile"),
        Line("TIFF: YCbCr", "jpeg.tif", rgb, "compressed, or not subsampled"),
        Line("WebP, lossy", "lossy.webp", rgb, "colours have half the resolution"),
        Line("AVIF", "lossy.avif", rgb, "as WebP"),
        Line("APNG, GIF, WebP, AVIF: animated", "animated.webp", rgb, "the first frame; a TIFF's first page"),
    ]


def lines() -> list[Line]:
    return [*jpegs(), *eight_bits(), *deep_levels(), *others()]


def shown(line: Line, channels: int) -> str:
    """What a trainer gets for the line's pixel of the golden file, at its stored size."""
    data = (FILES / line.file).read_bytes()
    with Image.open(BytesIO(data)) as file:
        width, height = file.size
    column, row = line.place
    return " ".join(str(level) for level in decoded(data, ImageSpec(height, width, channels))[row, column])


def table() -> str:
    rows = [f"| {line.what} | {line.stored} | {shown(line, 3)} | {shown(line, 1)} | {line.note} |" for line in lines()]
    return "\n".join(["| stored as | an example pixel | in RGB | in L | |", "|---|---|---|---|---|", *rows])


def with_table(page: str) -> str:
    """The page with the table as it must be."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
