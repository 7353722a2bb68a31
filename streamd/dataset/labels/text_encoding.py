"""Chooses the encoding of a text table or list: that of its byte order mark, else the configured one, else UTF-8.

A file that is not UTF-8 is refused; the message has the line, the byte, and the line's text in the encoding that the
file seems to have. To guess alone would put wrong letters into names of classes.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

from streamd.dataset.paths.confined import format_path
from streamd.errors import ConfigError
from streamd.limits import MIB

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


def choose_text_encoding(path: Path, named: str | None, key: str) -> str:
    """Returns the encoding of a file under Python's name: that of its byte order mark, else `named`, else UTF-8.

    Raises ConfigError for UTF-16 that neither has a mark nor is named, and OSError.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    marked = next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)
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


def build_text_error(path: Path, encoding: str, key: str, error: Exception) -> ConfigError:
    """Returns the error for a text that cannot be decoded or parsed."""
    return build_encoding_error(path, encoding, key) or ConfigError(
        f"{key}: {format_path(path)} cannot be read: {error}; write it again"
    )


def build_encoding_error(path: Path, encoding: str, key: str) -> ConfigError | None:
    """Returns an error that names the first line not in `encoding`, with what to do; None if all are.

    Raises OSError.
    """
    found = _find_decode_error(path, encoding)
    if found is None:
        return None
    error, line = found
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


def _find_decode_error(path: Path, encoding: str) -> tuple[UnicodeDecodeError, int] | None:
    """Returns the first error of decoding a file, and its line, from 1."""
    decoder = codecs.getincrementaldecoder(encoding)()
    breaks = 0
    with path.open("rb") as file:
        while True:
            data = file.read(MIB)
            try:
                breaks += decoder.decode(data, final=not data).count("\n")
            except UnicodeDecodeError as error:
                # The decoder keeps the bytes of an unfinished character, and the bytes in `error` begin with them.
                # Breaks are counted in decoded text only, so none of these bytes has been counted yet.
                return error, breaks + error.object.count(b"\n", 0, error.start) + 1
            if not data:
                return None
