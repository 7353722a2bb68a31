"""Detects the format of a file by its first bytes, and names what a file is that no decoder reads."""

from __future__ import annotations

import re
from typing import Final

from streamd.decode.resize import BadImageError

_BLOCK_BYTES: Final = 512  # as many zeros as a disk's block begin no other file
JPEG_START: Final = b"\xff\xd8\xff"
_MAGIC: Final[tuple[tuple[bytes | tuple[bytes, ...], str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    ((b"GIF87a", b"GIF89a"), "GIF"),
    (b"BM", "BMP"),
    ((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+"), "TIFF"),
)
_PLAIN_MAP: Final = re.compile(rb"P[1-6][\s#]")

# Files that lie among images, by any of the bytes at an offset: what each is, and what to do about it. A wrong guess
# gives a misleading reason, and never a wrong pixel.
_CONVERT: Final = "convert it to JPEG or PNG"
_KNOWN_FILES: Final[tuple[tuple[int, bytes | tuple[bytes, ...], str], ...]] = (
    (0, b"version https://git-lfs.github.com/spec/", "a Git LFS pointer: run git lfs pull"),
    (0, b"/annex/objects/", "a git-annex pointer: run git annex get"),
    (0, b"8BPS", f"a Photoshop document: {_CONVERT}"),
    (0, b"gimp xcf", f"a GIMP document: {_CONVERT}"),
    (0, (b"\xff\x0a", b"\x00\x00\x00\x0cJXL "), f"a JPEG XL image: {_CONVERT}"),
    (0, (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"), f"a JPEG 2000 image: {_CONVERT}"),
    (0, b"II\xbc\x01", f"a JPEG XR image: {_CONVERT}"),
    (0, b"v/1\x01", f"an OpenEXR image: {_CONVERT}"),
    (0, (b"#?RADIANCE", b"#?RGBE"), f"a Radiance HDR image: {_CONVERT}"),
    (0, (b"PF\n", b"Pf\n"), "a portable float map: save it as .npy or TIFF, and use mode: raw"),
    (0, b"P7\n", "a portable arbitrary map: convert it to PNG"),
    (0, b"qoif", "a QOI image: convert it to PNG"),
    (0, b"DDS ", "a DirectDraw texture: convert it to PNG"),
    (0, b"\xabKTX ", "a KTX texture: convert it to PNG"),
    (0, b"\x8aMNG", f"an MNG animation: {_CONVERT}"),
    (0, b"\x8bJNG", f"a JNG image: {_CONVERT}"),
    (0, b"BPG\xfb", f"a BPG image: {_CONVERT}"),
    (0, b"FLIF", "a FLIF image: convert it to PNG"),
    (0, b"AT&TFORM", f"a DjVu document: {_CONVERT}"),
    (0, b"\x00\x00\x01\x00", "an icon: convert it to PNG"),
    (0, b"\x00\x00\x02\x00", "a cursor: convert it to PNG"),
    (0, b"icns", "an icon of macOS: convert it to PNG"),
    (0, b"\xd7\xcd\xc6\x9a", "a Windows metafile: convert it to PNG"),
    (40, b" EMF", "a Windows metafile: convert it to PNG"),
    (0, b"\x00\x05\x16\x07", "a metadata file that macOS stores next to an image, not the image itself: delete it"),
    (0, b"%PDF", "a PDF: convert its pages to JPEG or PNG"),
    (0, b"%!PS", f"PostScript: {_CONVERT}"),
    (0, (b"IIRO", b"IIRS", b"MMOR"), f"a camera's raw file (ORF): {_CONVERT}"),
    (0, b"IIU\x00", f"a camera's raw file (RW2): {_CONVERT}"),
    (0, b"FUJIFILMCCD-RAW", f"a camera's raw file (RAF): {_CONVERT}"),
    (0, b"FOVb", f"a camera's raw file (X3F): {_CONVERT}"),
    (0, b"\x00MRM", f"a camera's raw file (MRW): {_CONVERT}"),
    (128, b"DICM", "a DICOM file: save its pixels as TIFF or .npy, and use mode: raw"),
    (344, b"n+1\x00", "a NIfTI volume: save its slices as .npy or TIFF, and use mode: raw"),
    (0, b"NRRD0", "an NRRD volume: save its slices as .npy or TIFF, and use mode: raw"),
    (0, b"SIMPLE  =", "a FITS file: save its images as .npy or TIFF, and use mode: raw"),
    (0, (b"CDF\x01", b"CDF\x02"), "a NetCDF file: save its images as .npy, and use mode: raw"),
    (0, b"MATLAB 5.0", "a MATLAB file: save its images as .npy"),
    (0, b"\x93NUMPY", "a NumPy array: use mode: raw, or a source of kind npy"),
    (0, b"\x89HDF\r\n", "an HDF5 file: use a source of kind hdf5"),
    (0, b"PAR1", "a Parquet file: use it as the table of a source of kind parquet"),
    (0, b"SQLite format 3\x00", "an SQLite database, not an image: delete it"),
    (
        0,
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an Office document or thumbnail list of Windows, not an image: delete it",
    ),
    (0, (b"\x1a\x45\xdf\xa3", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3"), "a video: extract its frames"),
    (0, (b"FLV\x01", b"0&\xb2u\x8ef\xcf\x11"), "a video: extract its frames"),
    (8, b"AVI LIST", "a video: extract its frames"),
    (8, b"WAVEfmt ", "a sound, not an image: delete it"),
    (0, b"ID3", "a sound, not an image: delete it"),
    (0, b"OggS", "a sound or a video: extract its frames"),
    (0, b"PK\x03\x04", "a zip archive: unpack it"),
    (0, b"\x1f\x8b", "compressed by gzip: unpack it"),
    (0, b"BZh", "compressed by bzip2: unpack it"),
    (0, b"\xfd7zXZ\x00", "compressed by xz: unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by Zstandard: unpack it"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (0, b"Rar!\x1a\x07", "a RAR archive: unpack it"),
    (257, b"ustar", "a tar archive: unpack it, or use a source of kind tar"),
    (0, b"MZ", "a program of Windows, not an image: delete it"),
    (0, b"\x7fELF", "a program of Linux, not an image: delete it"),
)
_MEDIA_BRANDS: Final = (  # of ISO media files; all others are videos
    (
        frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}),
        f"a HEIC image: {_CONVERT}",
    ),
    (frozenset({b"crx "}), f"a camera's raw file (CR3): {_CONVERT}"),
    (frozenset({b"jxl "}), f"a JPEG XL image: {_CONVERT}"),
    (frozenset({b"jp2 ", b"jpx "}), f"a JPEG 2000 image: {_CONVERT}"),
    (frozenset({b"M4A ", b"M4B "}), "a sound, not an image: delete it"),
)
_TEXT: Final = re.compile(rb"[\t\n\r\x20-\x7e]+")
_NONE_OF_OURS: Final = "neither JPEG, PNG, GIF, BMP, TIFF, WebP, AVIF nor PNM"


def detect_format(data: bytes) -> str:
    """Returns the format of a file, by Pillow's name. Raises BadImageError, which names the file's kind, for others."""
    if data.startswith(JPEG_START):
        return "JPEG"
    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if _PLAIN_MAP.match(data):
        return "PPM"
    if _parse_media_brands(data) & {b"avif", b"avis"}:
        return "AVIF"
    raise BadImageError(_describe_unknown_file(data))


def _parse_media_brands(data: bytes) -> set[bytes]:
    """Returns the brands of an ISO media file, which name its readers; empty for any other file."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4]), 256)  # real files have fewer than ten brands
    return {data[8:12], *(data[at : at + 4] for at in range(16, end, 4))}


def _describe_unknown_file(data: bytes) -> str:
    """Returns what a file is that no decoder reads, and what to do about it."""
    if not data:
        return "an empty file"
    zeros = len(data) - len(data.lstrip(b"\x00"))
    if zeros == len(data):
        return f"{len(data)} zero bytes: a copy or download that was never finished"
    known = next((what for offset, magic, what in _KNOWN_FILES if data.startswith(magic, offset)), None)
    if known is not None:
        return known
    if brands := _parse_media_brands(data):
        return next((what for names, what in _MEDIA_BRANDS if brands & names), "a video: extract its frames")
    if zeros >= _BLOCK_BYTES:
        return f"a file that begins with {zeros} zero bytes: a copy or download that was never finished"
    beginning = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        beginning = data[:1024].decode("utf-16", "replace").encode()
    return _describe_text(beginning) or f"{_NONE_OF_OURS}: it begins with {data[:4]!r}"


def _describe_text(beginning: bytes) -> str | None:
    small = beginning.lower()
    if small.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) or (
        small.startswith(b"<") and b"<html" in small  # behind a comment or a declaration
    ):
        return "an HTML page, which was downloaded instead of the image: download it again"
    if small.startswith(b"<"):
        return "an SVG drawing: convert it to PNG" if b"<svg" in small else "an XML file, perhaps a server's answer"
    if small.startswith(b"data:image/"):
        return "a data URL, whose text holds an image: decode it to a file"
    if small.startswith((b"http://", b"https://")):
        return "the address of an image, not the image itself: download it"
    return f"text: it begins with {beginning[:40]!r}" if _TEXT.fullmatch(beginning) else None
