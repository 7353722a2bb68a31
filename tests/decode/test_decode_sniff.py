"""The format of a file follows from its bytes; other data are refused with what they are and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import FILES
from support.smooth_pictures import decoded, encoded, smooth

from streamd.core.spec import ImageSpec
from streamd.decode.decoders import BadImageError
from streamd.decode.sniff import detect_format

SUFFIXES = {
    ".jpg": "JPEG",
    ".png": "PNG",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".avif": "AVIF",
    ".pbm": "PPM",
    ".pgm": "PPM",
    ".ppm": "PPM",
}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("file", sorted(FILES.iterdir()), ids=lambda file: str(file.name))
def test_every_golden_file_has_the_format_of_its_suffix(file: Path) -> None:
    assert detect_format(file.read_bytes()) == SUFFIXES[file.suffix]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "^an empty file$"),
        (bytes(4096), "^4096 zero bytes: a copy or download that was never finished$"),
        (b"<!DOCTYPE html><html><body>404", "^an HTML page"),
        (b"\xef\xbb\xbf\n  <HTML lang=en>", "^an HTML page"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "^an SVG drawing: convert it to PNG$"),
        (b"<svg width='3'/>", "^an SVG drawing: convert it to PNG$"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "^an XML file, perhaps a server's answer$"),
        (b"<!-- saved -->\n<html>", "^an HTML page"),
        ("<html>".encode("utf-16"), "^an HTML page"),
        (b"https://example.org/cat.jpg", "^the address of an image"),
        (b"data:image/png;base64,iVBORw0", "^a data URL"),
        (LFS, "^a Git LFS pointer: run git lfs pull$"),
        (
            b"/annex/objects/SHA256E-s31390--f50d7ac4c6b9031379986bc362fcefb65f1e52621ce1708d537e740fefc59cc0.jpg",
            "annex",
        ),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "^a HEIC image: convert it to JPEG or PNG$"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "^a HEIC image"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", "^a video: extract its frames$"),
        (b"\xff\x0a\xfa\x7f\x01\x90", "^a JPEG XL image"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "^a JPEG XL image"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "^a JPEG 2000 image"),
        (b"8BPS\0\1", "^a Photoshop document"),
        (b"%PDF-1.7\n", "^a PDF: convert its pages"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "^PostScript"),
        (b"\0\x05\x16\x07\0\x02", "^a metadata file that macOS stores next to an image"),
        (b'{"message": "not found"}', '^text: it begins with b\'{"message": "not found"}\'$'),
        (b"RIFF\0\0\0\0WAVEfmt ", "^a sound, not an image"),
        (b"RIFF\0\0\0\0AVI LIST", "^a video: extract its frames$"),
        (bytes(128) + b"DICM\2\0", "^a DICOM file: save its pixels as TIFF or .npy, and use mode: raw$"),
        (bytes(128) + b"DICM" + bytes(1000), "^a DICOM file"),
        (b"\x5c\x01\0\0" + bytes(340) + b"n+1\0", "^a NIfTI volume"),
        (bytes(257) + b"ustar\x0000", "^a tar archive"),
        (bytes(600) + b"\xff\xd8\xff", "^a file that begins with 600 zero bytes: a copy or download that was never"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom", r"^a camera's raw file \(CR3\)"),
        (b"FUJIFILMCCD-RAW 0201", r"^a camera's raw file \(RAF\)"),
        (b"IIRO\x08\0\0\0", r"^a camera's raw file \(ORF\)"),
        (b"II\xbc\1\x20\0\0\0", "^a JPEG XR image"),
        (b"#?RADIANCE\n", "^a Radiance HDR image"),
        (b"SIMPLE  =                    T", "^a FITS file"),
        (b"NRRD0004\n", "^an NRRD volume"),
        (b"PK\3\4\x14\0", "^a zip archive: unpack it$"),
        (b"\x93NUMPY\1\0", "^a NumPy array: use mode: raw"),
        (b"\x89HDF\r\n\x1a\n", "^an HDF5 file"),
        (b"PAR1", "^a Parquet file"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "^an Office document or thumbnail list of Windows"),
        (b"\x00\x00\x01\xba\x44", "^a video"),
        (b"RIFF\0\0\0\0ACONanih", r"^neither JPEG, PNG, .* nor PNM: it begins with b'RIFF'$"),
        (b"\xfe\xed\xfa\xce", r"^neither JPEG, PNG, .* nor PNM: it begins with b'\\xfe\\xed\\xfa\\xce'$"),
        (b"P9 3 3 ", "^text: it begins with b'P9 3 3 '$"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value[:10]),
)
def test_data_that_are_no_image_are_refused_with_what_they_are(data: bytes, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        detect_format(data)


def test_a_still_picture_in_a_general_container_is_detected_by_any_of_its_brands() -> None:
    data = encoded(smooth(16, 16), "AVIF")
    general = data.replace(b"ftypavif", b"ftypmif1", 1)
    assert general != data
    assert detect_format(general) == "AVIF"


def test_only_the_first_brands_of_a_container_are_read() -> None:
    data = b"\xff\xff\xff\xffftypisom" + bytes(4) + b"isom" * 1000 + b"avif"
    with pytest.raises(BadImageError, match="a video"):
        detect_format(data)


def test_a_reason_never_holds_more_of_a_file_than_a_line() -> None:
    with pytest.raises(BadImageError) as caught:
        detect_format(b"a" * 100_000)
    assert len(str(caught.value)) < 80


def test_an_html_page_saved_as_a_jpeg_is_bad() -> None:
    with pytest.raises(BadImageError, match="an HTML page, which was downloaded instead of the image"):
        decoded(b"<html><head><title>429 Too Many Requests</title></head></html>", ImageSpec(8, 8, 3))
