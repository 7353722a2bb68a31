"""Kinds of bad samples, from the texts of the code that finds them, and lists of bad samples page by page."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.daemon.monitor.snapshot import build_bad_sample_page
from streamd.daemon.streams.quarantine import FAULT_KINDS, classify_fault_reason
from streamd.dataset.hdf5.library_store import DAMAGED_CHUNK
from streamd.dataset.paths.open_beneath import UnfitFileError, check_file_size
from streamd.decode.resize import BadImageError, check_image_size
from streamd.decode.sniff import detect_format
from streamd.limits import MAX_FILE_BYTES, MAX_PIXELS


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stale: changed since it was listed; restart with --rescan to list it again", "stale"),
        ("removed, or replaced by another", "stale"),
        ("No such file or directory", "gone"),
        ("it lies outside the data's root", "gone"),
        ("a damaged JPEG: Premature end of JPEG file", "damaged"),
        ("a pixel is not a number (NaN)", "damaged"),
        (DAMAGED_CHUNK, "damaged"),
        ("12000x12000 pixels are more than 100,000,000: make it smaller", "large"),
        ("the file has 300000000 bytes, and at most 268435456 are allowed", "large"),
        ("more than 100,000,000 pixels: make it smaller", "large"),
        ("crashes the decoder: SIGSEGV", "crash"),
        ("takes more than 30 s to decode", "crash"),
        ("needs more memory to decode than a worker has, 3 GiB", "crash"),
        ("transform raised ValueError: a damaged thing", "transform"),
        ("CIELAB colours, which need colour management: convert it to RGB", "unfit"),
        ("something that nobody has thought of", "unfit"),
    ],
)
def test_each_reason_has_one_kind(reason: str, kind: str) -> None:
    assert classify_fault_reason(reason) == kind


def test_the_code_that_finds_a_wrong_size_uses_the_words_that_classify_it() -> None:
    with pytest.raises(BadImageError) as empty:
        check_image_size(0, 3)
    with pytest.raises(BadImageError) as large:
        check_image_size(1, MAX_PIXELS + 1)
    with pytest.raises(UnfitFileError) as long:
        check_file_size(MAX_FILE_BYTES + 1)

    kinds = [classify_fault_reason(str(caught.value)) for caught in (empty, large, long)]
    assert kinds == ["damaged", "large", "large"]


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", "damaged"), (bytes(100), "damaged"), (bytes(9999) + b"\xff", "damaged"), (b"%PDF-1.7", "unfit")],
)
def test_damaged_files_and_other_formats_are_different_kinds(data: bytes, kind: str) -> None:
    with pytest.raises(BadImageError) as caught:
        detect_format(data)
    assert classify_fault_reason(str(caught.value)) == kind


def test_many_reasons_make_few_kinds() -> None:
    assert {
        classify_fault_reason(f"{word} {number}") for word in ("stale", "a damaged", "x") for number in range(99)
    } < set(FAULT_KINDS)


REASONS = dict.fromkeys(range(100, 150), "a damaged JPEG: truncated")


def some(before: int | None, reasons: dict[int, str] = REASONS) -> dict[str, Any]:
    return build_bad_sample_page(reasons, lambda sample_id: f"{sample_id}.jpg", before)


def test_the_newest_come_first_with_file_reason_and_kind() -> None:
    told = some(None)
    assert told["bad"] == 50
    assert told["samples"][0] == {
        "sample_id": 149,
        "file": "149.jpg",
        "reason": "a damaged JPEG: truncated",
        "kind": "damaged",
    }


def test_paging_returns_each_sample_once() -> None:
    seen, before, lists = [], None, 0
    while True:
        told = some(before)
        seen += [each["sample_id"] for each in told["samples"]]
        before, lists = told["before"], lists + 1
        if before is None:
            break
    assert (seen, lists) == (list(range(149, 99, -1)), 3)


def test_samples_added_between_pages_shift_nothing() -> None:
    first = some(None)
    more = some(first["before"], {**REASONS, 7: "an empty file"})
    assert more["samples"][0]["sample_id"] == first["samples"][-1]["sample_id"] - 1


@pytest.mark.parametrize("before", [0, None])
def test_without_bad_samples_the_page_is_empty(before: int | None) -> None:
    assert some(before, {}) == {"bad": 0, "samples": [], "before": None}


def test_a_position_beyond_the_list_gives_the_first_page() -> None:
    assert some(10**17)["samples"] == some(None)["samples"]
