"""The formats that Pillow reads: pixels, first frames, decompression bombs and damage."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
import pytest
from golden_files import exif
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, features
from support.smooth_pictures import apart, decoded, encoded, png, smooth
from support.stored_numbers import build_png_chunk, encode_png

from streamd.core.spec import ImageSpec
from streamd.decode import pillow
from streamd.decode.decoders import BadImageError, decode_image
from streamd.errors import ConfigError
from streamd.limits import MAX_PIXELS

PICTURE = smooth(20, 30)
IMAGE = ImageSpec(20, 30, 3)
GREY = ImageSpec(20, 30, 1)


@pytest.mark.parametrize("name", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_files_give_their_exact_pixels(name: str) -> None:
    assert np.array_equal(decoded(encoded(PICTURE, name), IMAGE), np.asarray(PICTURE))


@pytest.mark.parametrize(("lossless", "tolerance"), [(True, 0), (False, 16)])
def test_webp_gives_its_pixels(*, lossless: bool, tolerance: int) -> None:
    assert apart(decoded(encoded(PICTURE, "WEBP", lossless=lossless, quality=95), IMAGE), PICTURE) <= tolerance


@pytest.mark.parametrize("name", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_the_first_picture_of_several_is_shown(name: str) -> None:
    options: dict[str, Any] = {"lossless": True} if name == "WEBP" else {}
    frames = [picture.quantize(32) if name == "GIF" else picture for picture in (PICTURE, PICTURE.rotate(180))]
    several = encoded(frames[0], name, save_all=True, append_images=frames[1:], **options)
    assert len(several) > len(encoded(frames[0], name, **options))
    assert apart(decoded(several, IMAGE), frames[0].convert("RGB")) <= (40 if name == "AVIF" else 0)


def test_transparent_pixels_of_a_gif_become_white() -> None:
    picture = Image.new("P", (30, 20), 1)
    picture.putpalette([10, 20, 30, 200, 0, 0])
    picture.paste(0, (15, 0, 30, 20))
    pixels = decoded(encoded(picture, "GIF", transparency=0, optimize=False), IMAGE)
    assert (pixels[:, :15] == (200, 0, 0)).all()
    assert (pixels[:, 15:] == 255).all()


def test_a_gif_shows_white_where_its_first_frame_draws_nothing() -> None:
    data = encoded(Image.new("P", (30, 20), 0), "GIF", optimize=False)
    larger = data[:6] + struct.pack("<HH", 40, 30) + data[10:]  # the canvas; the frame stays as it is
    pixels = decoded(larger, ImageSpec(30, 40, 1))
    assert (pixels[:20, :30] == 0).all()
    assert (pixels[20:] == 255).all()
    assert (pixels[:, 30:] == 255).all()


@pytest.mark.parametrize(("white", "kind"), [(100, ">u1"), (1000, ">u2"), (65535, ">u2")])
def test_a_portable_map_defines_its_own_white(white: int, kind: str) -> None:
    levels = np.array([[0, white // 4, white]], dtype=kind)
    data = f"P5\n# by hand\n3 1\n{white}\n".encode() + levels.tobytes()
    assert decoded(data, ImageSpec(1, 3, 1)).ravel().tolist() == [0, 64, 255]


@pytest.mark.parametrize("image", [ImageSpec(2, 2, 3), ImageSpec(2, 2, 1)])
@pytest.mark.parametrize("data", [b"P1 2 2\n1 0\n0 1\n", b"P4 2 2\n\x80\x40"], ids=["text", "bytes"])
def test_a_set_bit_of_a_portable_bitmap_is_black(data: bytes, image: ImageSpec) -> None:
    assert decoded(data, image)[:, :, 0].tolist() == [[0, 255], [255, 0]]


def bombs() -> dict[str, bytes]:
    """Files that say they are large, and hold next to nothing."""
    canvas = (39_999).to_bytes(3, "little") + (29_999).to_bytes(3, "little")
    webp = b"VP8X" + struct.pack("<IB3x", 10, 0) + canvas
    page = encoded(Image.new("1", (8, 8)), "TIFF")
    sides = [struct.pack("<HHII", tag, kind, 1, 8) for tag in (256, 257) for kind in (3, 4)]
    for side in sides:
        page = page.replace(side, side[:8] + struct.pack("<I", 40_000))
    return {
        "png": png(8, 2, [], (40_000, 30_000)),
        "webp": b"RIFF" + struct.pack("<I", len(webp) + 4) + b"WEBP" + webp,
        "gif": b"GIF89a"
        + struct.pack("<HH", 40_000, 30_000)
        + b"\0\0\0,"
        + struct.pack("<4H", 0, 0, 40_000, 30_000)
        + b"\0\2\0;",
        "bmp": b"BM"
        + struct.pack("<IHHI", 54, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, 40_000, 30_000, 1, 24, *[0] * 6),
        "pgm": b"P5 40000 30000 255\n",
        "tiff": page,
    }


@pytest.mark.parametrize("name", bombs())
def test_a_bomb_is_refused_before_its_pixels_are_made(name: str) -> None:
    with pytest.raises(BadImageError, match=f"more than {MAX_PIXELS:,} pixels: make it smaller"):
        decoded(bombs()[name], IMAGE)


def test_a_png_without_pixels_is_bad() -> None:
    with pytest.raises(BadImageError, match="a damaged PNG"):
        decoded(png(8, 2, [], (20, 30)), IMAGE)


def test_a_png_with_a_palette_that_is_missing_is_bad() -> None:
    with pytest.raises(BadImageError, match=r"^a damaged PNG: what it says of itself does not agree$"):
        decoded(png(8, 3, [bytes(30)] * 20, (20, 30)), IMAGE)


def test_a_tiff_whose_palette_has_levels_above_the_largest_is_bad() -> None:
    palette = encoded(smooth(8, 8).convert("P"), "TIFF")
    at = palette.index(struct.pack("<HHI", 320, 3, 768))  # the tag, the type and the number of the levels
    as_32_bits = palette[:at] + struct.pack("<HHI", 320, 4, 384) + palette[at + 8 :]
    with pytest.raises(BadImageError, match="a damaged TIFF: unsigned byte integer is greater than maximum"):
        decoded(as_32_bits, IMAGE)


def test_a_damaged_header_always_gives_the_same_reason() -> None:
    data = b"II*\0" + bytes(60)
    with pytest.raises(BadImageError, match=r"^a damaged TIFF: its header cannot be read$"):
        decoded(data, IMAGE)


def test_a_valid_file_of_an_unsupported_kind_is_not_called_damaged() -> None:
    of_16_bytes = b"BM" + struct.pack("<IHHI", 26, 0, 0, 26) + struct.pack("<I", 16) + bytes(20)
    with pytest.raises(
        BadImageError, match=r"^a BMP that cannot be read \(Unsupported BMP header type \(16\)\): convert it"
    ):
        decoded(of_16_bytes, IMAGE)


def test_a_pillow_without_the_library_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda library: library != "avif")
    pillow.check_format_support.cache_clear()
    try:
        with pytest.raises(ConfigError, match="this Pillow was built without avif, which AVIF needs"):
            decoded(encoded(PICTURE, "AVIF"), IMAGE)
        assert decoded(encoded(PICTURE, "PNG"), IMAGE).shape == IMAGE.shape
    finally:
        pillow.check_format_support.cache_clear()


def test_decoding_is_refused_where_pillow_loads_truncated_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(RuntimeError, match="LOAD_TRUNCATED_IMAGES"):
        decoded(encoded(PICTURE, "PNG"), IMAGE)


NUMBERS: Final = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
LARGE: Final = zlib.compress(bytes(3 << 20))  # which Pillow does not unpack
SOUND_PNGS: Final = {
    "RGB": (encode_png(NUMBERS), IMAGE),
    "grey": (encode_png(NUMBERS[..., :1]), GREY),
    "palette with alpha": (encoded(PICTURE.quantize(16), "PNG", transparency=bytes(range(0, 256, 16))), IMAGE),
    "turned": (encoded(PICTURE, "PNG", exif=exif(3)), IMAGE),
    "one colour transparent": (encoded(PICTURE, "PNG", transparency=PICTURE.getpixel((5, 5))), IMAGE),
    "class numbers": (encode_png(NUMBERS[..., :1]), ImageSpec(20, 30, 1, mode="index")),
    "16 bits": (encode_png(NUMBERS.astype(np.uint16) * 251), ImageSpec(20, 30, 3, mode="raw", dtype="uint16")),
}


def list_chunks(data: bytes) -> list[bytes]:
    """The chunks of a PNG, whole."""
    chunks, at = [], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4])
        chunks.append(data[at:end])
        at = end
    return chunks


METADATA: Final = st.one_of(
    st.builds(
        build_png_chunk,
        st.sampled_from([b"zTXt", b"iTXt", b"iCCP", b"tEXt", b"tIME", b"pHYs", b"gAMA", b"sRGB", b"eXIf", b"prVt"]),
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([b"remark\0\0" + LARGE, b"XML:com.adobe.xmp\0\1\0\0\0" + LARGE, b"profile\0\0" + LARGE]),
        ),
    ),
    # A checksum that is wrong says that the content is.
    st.binary(min_size=4, max_size=30).map(lambda data: build_png_chunk(b"tEXt", data)[:-4] + bytes(4)),
)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(st.sampled_from(sorted(SOUND_PNGS)), st.lists(st.tuples(st.integers(1, 5), METADATA), max_size=4))
def test_metadata_of_a_png_decide_on_no_pixel(kind: str, added: list[tuple[int, bytes]]) -> None:
    data, image = SOUND_PNGS[kind]
    chunks = list_chunks(data)
    for place, chunk in added:
        if b"eXIf" in (chunk[4:8], *(each[4:8] for each in chunks)) and kind == "turned":
            continue  # there may be one only
        chunks.insert(place, chunk)  # also behind the pixels, and behind the end
    row, expected = (np.zeros(image.shape, image.dtype) for _ in range(2))
    decode_image(data, expected, image)
    decode_image(data[:8] + b"".join(chunks), row, image)
    assert np.array_equal(row, expected)


@pytest.mark.parametrize("name", ["IHDR", "PLTE", "tRNS", "IDAT"])
def test_a_damaged_chunk_that_decides_on_pixels_is_bad_beside_damaged_metadata(name: str) -> None:
    data = SOUND_PNGS["palette with alpha"][0]
    chunks = list_chunks(data)
    place = next(place for place, chunk in enumerate(chunks) if chunk[4:8] == name.encode())
    chunks[place] = chunks[place][:8] + chunks[place][8:-4][::-1] + chunks[place][-4:]
    chunks.insert(1, build_png_chunk(b"zTXt", b"remark\0\0" + LARGE))
    with pytest.raises(BadImageError):
        decoded(data[:8] + b"".join(chunks), IMAGE)


@pytest.mark.parametrize("kept", [0.4, 0.7, 0.95])
def test_a_truncated_png_is_bad_beside_damaged_metadata(kept: float) -> None:
    chunks = list_chunks(encode_png(NUMBERS))
    chunks.insert(1, build_png_chunk(b"iCCP", b"profile\0\0" + LARGE))
    data = chunks[0] + chunks[1] + chunks[2][: int(len(chunks[2]) * kept)]
    with pytest.raises(BadImageError, match="a damaged PNG"):
        decoded(b"\x89PNG\r\n\x1a\n" + data, IMAGE)


def test_a_webp_is_read_whatever_its_metadata_are_like() -> None:
    noise = Image.fromarray(NUMBERS)
    data = encoded(noise, "WEBP", lossless=True, exif=exif(3).tobytes(), xmp=b"<x/>" * 50, icc_profile=b"icc" * 50)
    plain = np.asarray(noise)
    at, last = data.index(b"EXIF"), data.index(b"XMP ")
    too_long = (1 << 20).to_bytes(4, "little")
    assert np.array_equal(decoded(data, IMAGE), plain[::-1, ::-1])
    assert np.array_equal(decoded(data[: last + 4] + too_long + data[last + 8 :], IMAGE), plain[::-1, ::-1])
    assert np.array_equal(decoded(data[:-60], IMAGE), plain[::-1, ::-1])
    assert np.array_equal(decoded(data[: at + 4] + too_long + data[at + 8 :], IMAGE), plain)
    pixels = data.index(b"VP8L")
    for cut in (pixels + 6, pixels + 100, at - 100, at - 2):
        with pytest.raises(BadImageError, match="a damaged WEBP"):
            decoded(data[:cut], IMAGE)


@pytest.mark.parametrize(
    ("name", "options"), [("GIF", {"comment": b"remark" * 99}), ("TIFF", {"icc_profile": b"icc" * 99}), ("AVIF", {})]
)
def test_damaged_metadata_of_other_formats_decide_on_no_pixel(name: str, options: dict[str, Any]) -> None:
    xmp = b"<x:xmpmeta>" + b"y" * 300 + b"</x:xmpmeta>"
    told = {"tiffinfo": {700: xmp}} if name == "TIFF" else {"xmp": xmp}
    data = encoded(PICTURE, name, **options, **told)
    expected = decoded(data, IMAGE)
    rng = np.random.default_rng(0)
    for of_file in (xmp, *options.values()):
        at = data.find(of_file)
        for damaged in (bytes(len(of_file)), rng.bytes(len(of_file))) if at > 0 else ():
            other = data[:at] + damaged.replace(b"\0", b"\1" if name == "GIF" else b"\0") + data[at + len(of_file) :]
            assert np.array_equal(decoded(other, IMAGE), expected)
