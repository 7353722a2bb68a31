"""Reads text and JSON of all sources in one way: by its byte order mark, else as configured, else as UTF-8.

A file that is not UTF-8 is refused; the message has the line, the byte, and the line's text in the encoding that the
file seems to have. To guess alone would put wrong letters into names of classes.

JSON may have a byte order mark, and NaN and Infinity, which Python writes: they are read as null, a missing value.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from streamd.dataset.paths.confined import format_path
from streamd.errors import ConfigError
from streamd.limits import MIB

BYTE_ORDER_MARK: Final = "\ufeff"
UTF8: Final = "utf-8-sig"  # with or without a mark
_MARKS: Final = (  # the longer ones first: that of UTF-32 begins as that of UTF-16 does
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD_BYTES: Final = 4096
_ZEROS_OF_UTF16: Final = 4  # one of so many bytes, at least, is zero where most letters are those of English
_SHOWN_CHARS: Final = 60  # of a line in a message
_LIKELY_LEGACY: Final = "cp1252"
# One match runs up to the next of these outside a string, or to the end; no byte is looked at twice.
_NEXT_ODD_NUMBER: Final = re.compile(
    rb'(?:[^"NI-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|N(?!aN)|-(?!Infinity)|I(?!nfinity))*+(NaN|-?Infinity|\Z)',
    re.DOTALL,
)
# Whole pairs of surrogates and other escapes are matched first, so that what is left is half of a pair.
_HALF_OF_PAIR: Final = re.compile(
    rb"((?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]|\\u[^dD]|\\u[dD][0-7])++)"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)

Decoded = TypeVar("Decoded")


def choose_text_encoding(path: Path, named: str | None, key: str) -> str:
    """Returns the encoding of a file under Python's name: that of its byte order mark, else `named`, else UTF-8.

    Raises ConfigError for UTF-16 that neither has a mark nor is named, and OSError.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    marked = _find_marked_encoding(head)
    if marked is not None:
        return marked
    if named is not None:
        return UTF8 if codecs.lookup(named).name == "utf-8" else named
    if head.count(b"\0") * _ZEROS_OF_UTF16 >= len(head) > 0:
        likely = "utf-16-be" if head.find(b"\0") % 2 == 0 else "utf-16-le"
        raise ConfigError(
            f"{key}: {format_path(path)} contains bytes of value 0, as UTF-16 without a byte order mark does; it "
            f"looks like {likely}: {format_encoding_remedy(path, likely, key)}"
        )
    return UTF8


def _find_marked_encoding(head: bytes) -> str | None:
    """Returns the encoding that the byte order mark of a text gives; None if there is no mark."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)


def decode_text(data: bytes) -> str:
    """Returns a text that is read whole: in the encoding of its byte order mark, else in UTF-8.

    Raises UnicodeDecodeError.
    """
    return data.decode(_find_marked_encoding(data) or UTF8)


def split_lines(text: str) -> list[str]:
    """Returns the lines of a text, whichever system wrote their ends: CR LF, LF, or CR alone."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def decode_json(data: bytes, decoder: msgspec.json.Decoder[Decoded]) -> Decoded:
    """Decodes JSON that may have a byte order mark, and NaN and Infinity, which are read as null; see `_mend_json`.

    Raises DecodeError, UnicodeDecodeError and RecursionError. JSON without these is decoded once, at full speed.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = _mend_json(data)
        if mended is None:
            raise
    return decoder.decode(mended)


def _mend_json(data: bytes) -> bytes | None:
    """Returns JSON in UTF-8 without what Python writes into it and other programs refuse; None if it has none of that.

    NaN and Infinity become null. Half of a pair of surrogates, from a file name that is no text, becomes a NUL: labels
    and names with it are refused.
    """
    encoding = _find_marked_encoding(data)
    if encoding is None:
        text = data
    elif encoding == UTF8:
        text = data.removeprefix(codecs.BOM_UTF8)
    else:
        text = data.decode(encoding).encode()
    if rb"\ud" in text or rb"\uD" in text:
        text = _HALF_OF_PAIR.sub(lambda found: found[1] or rb"\u0000", text)
    parts, end = list[bytes](), 0
    for match in _NEXT_ODD_NUMBER.finditer(text):
        if match[1]:
            parts += [text[end : match.start(1)], b"null"]
            end = match.end()
    mended = b"".join([*parts, text[end:]])
    return None if mended == data else mended


def build_text_error(path: Path, encoding: str, key: str, error: Exception) -> ConfigError:
    """Returns the error for a text that cannot be decoded or parsed."""
    return build_encoding_error(path, encoding, key) or ConfigError(
        f"{key}: {format_path(path)} cannot be read: {error}; write it again"
    )


def build_encoding_error(path: Path, encoding: str, key: str) -> ConfigError | None:
    """Returns an error that names the first line not in `encoding`, with what to do; None if all are.

    Raises OSError.
    """
    decoder, line, error = codecs.getincrementaldecoder(encoding)(), 1, None
    with path.open("rb") as file:
        while error is None:
            data = file.read(MIB)
            try:
                line += decoder.decode(data, final=not data).count("\n")
            except UnicodeDecodeError as found:
                # The decoder keeps the bytes of an unfinished character, and the bytes in `found` begin with them.
                # Breaks are counted in decoded text only, so none of these bytes has been counted yet.
                error, line = found, line + found.object.count(b"\n", 0, found.start)
            else:
                if not data:
                    return None
    called = "UTF-8" if encoding == UTF8 else encoding
    where = f"{key}: {format_path(path)}, line {line}, is not valid {called}: byte 0x{error.object[error.start]:02x}"
    if encoding != UTF8:
        return ConfigError(
            f"{where} ({error.reason}); give the encoding that the file was saved in, or save the file as UTF-8"
        )
    begin, end = error.object.rfind(b"\n", 0, error.start) + 1, error.object.find(b"\n", error.start)
    try:
        text = error.object[begin : end if end >= 0 else None].decode(_LIKELY_LEGACY).strip()[:_SHOWN_CHARS]
    except UnicodeDecodeError:
        named = (
            ""
            if _has_no_encoding_key(key)
            else ", or add encoding: NAME under source, where NAME is the encoding that the file was saved in"
        )
        return ConfigError(f"{where}; save the file as UTF-8{named}")
    return ConfigError(
        f"{where}; it looks like Latin-1 or Windows-1252, in which the line reads {text!r}: "
        f"{format_encoding_remedy(path, _LIKELY_LEGACY, key)}"
    )


def format_encoding_remedy(path: Path, encoding: str, key: str) -> str:
    """Names the key that sets the encoding, if the source has one, and a command that converts the file."""
    command = f"iconv -f {encoding.upper()} -t UTF-8 {path.name} > utf8-{path.name}"
    named = "" if _has_no_encoding_key(key) else f"add encoding: {encoding} under source, or "
    return f"{named}save the file as UTF-8: {command}"


def _has_no_encoding_key(key: str) -> bool:
    """Returns whether the file is a table beside arrays, which is always read as UTF-8."""
    return key.endswith(".table")
