"""Which findings are trouble, which are warnings, and which are neither."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.check_findings import BROKEN, STREAM, findings, stream

from streamd.cli.check.findings import (
    BadSampleOutcome,
    CacheEstimate,
    CheckFindings,
    DataLeak,
    LabelContradiction,
    OddPictures,
    StreamFinding,
    TrainerCapacity,
    UnpackingEstimate,
    UnreadableFile,
    WeightSummary,
)
from streamd.cli.check.labels import LabelFinding
from streamd.core.spec import BadPolicy

CONTRADICTION = LabelContradiction("label", ["train: a.jpg", "train: b.jpg"], ["cat", "dog"], trouble=True)


def test_good_data_give_no_trouble_and_no_warning() -> None:
    assert (findings().troubles, findings().warnings) == ([], [])


def test_unreadable_files_are_counted_and_the_first_is_named() -> None:
    one = findings(stream(unreadable=[BROKEN])).troubles
    assert one == ["train: 1 unreadable file: cat/broken.jpg: a damaged JPEG"]
    two = findings(stream(unreadable=[BROKEN, replace(BROKEN, file="z")])).troubles
    assert two == ["train: 2 unreadable files, the first: cat/broken.jpg: a damaged JPEG"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (findings(refused=["monitor: is not served"]), "monitor: is not served"),
        (findings(stream(bad_samples=BadSampleOutcome("fail", 0.01, "12 are bad"))), "stop this stream: 12 are bad"),
        (findings(stream(memory=replace(STREAM.memory, trainers=TrainerCapacity(0, 0, "too small")))), "too small"),
        (
            findings(contradictions=[CONTRADICTION]),
            "1 picture with different values of label, such as train: a.jpg (cat)",
        ),
    ],
    ids=["refused", "stops", "memory", "contradiction"],
)
def test_a_finding_that_must_be_fixed_is_trouble(found: CheckFindings, said: str) -> None:
    (trouble,) = found.troubles
    assert said in trouble
    assert found.warnings == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (findings(notes=["skipped 3 files"]), "skipped 3 files"),
        (
            findings(stream(pictures=replace(STREAM.pictures, odd={"invisible": OddPictures(3, "a.bmp")}))),
            "train: 3 samples with a picture of which nothing is visible, such as a.bmp: alpha is 0 everywhere",
        ),
        (
            findings(stream(pictures=replace(STREAM.pictures, odd={"unturned": OddPictures(1, "b.jpg")}))),
            "train: 1 sample with a picture whose EXIF data cannot be read, b.jpg: nothing says which way up",
        ),
        (
            findings(stream(labels={"label": LabelFinding("category", {"cat": 90, "owl": 10}, 9.0)})),
            "train: cat has 9 times",
        ),
        (
            findings(stream(duplicates=[["a", "b", "c"]])),
            "train: 2 files with the same content as another, such as a and b",
        ),
        (
            findings(stream(duplicates=[["a", "a", "a"]])),
            "train: 2 samples whose file is already in the list, through a link or a second line, such as a",
        ),
        (findings(stream(poorly_mixed="batches are poorly mixed")), "train: batches are poorly mixed"),
        (findings(leaks=[DataLeak("train", "validation", 3, ("a", "b"))]), "leakage: 3 files of validation"),
        (findings(contradictions=[replace(CONTRADICTION, trouble=False)]), "fine if these values were really measured"),
        (findings(together=TrainerCapacity(0, 0, "too small")), "no trainer can read all streams at the same time"),
    ],
    ids=["notes", "invisible", "unturned", "imbalance", "copies", "again", "mixing", "leak", "numbers", "together"],
)
def test_a_finding_that_may_be_intended_is_a_warning(found: CheckFindings, said: str) -> None:
    (warning,) = found.warnings
    assert said in warning
    assert found.troubles == []


def test_many_contradictions_of_a_label_are_one_sentence() -> None:
    (trouble,) = findings(contradictions=[CONTRADICTION] * 400).troubles
    assert trouble.startswith("400 pictures with different values of label")


def test_a_contradiction_names_one_file_for_each_value() -> None:
    copies = LabelContradiction("label", [f"{number}.jpg" for number in range(5)], ["cat"] * 4 + ["dog"], trouble=True)
    (trouble,) = findings(contradictions=[copies]).troubles
    assert "such as 0.jpg (cat), 4.jpg (dog); for each picture, keep" in trouble


def test_a_file_that_two_classes_link_to_is_reported_as_listed_twice() -> None:
    linked = replace(CONTRADICTION, files=["train: a.jpg", "train: a.jpg"])
    (trouble,) = findings(contradictions=[linked]).troubles
    assert trouble.endswith(
        "for each picture, keep only the entry that is right; a file with two values is in the list twice, through a "
        "link or a second line"
    )


def test_a_file_that_many_samples_show_is_one_unreadable_file() -> None:
    outcome = BadSampleOutcome("substitute", 0.01, None, 60, unreadable_files=1)
    (trouble,) = findings(stream(unreadable=[BROKEN] * 16, bad_samples=outcome)).troubles
    assert trouble.startswith("train: 1 unreadable file, shown by 16 samples, the first: cat/broken.jpg")


RAISED = replace(BROKEN, reason="transform raised ValueError at augment.py:2: no", effect="transform")


def test_samples_on_which_a_transform_raises_are_not_unreadable_files() -> None:
    assert findings(stream(read=300, unreadable=[RAISED, BROKEN, RAISED])).troubles == [
        "train: 1 unreadable file: cat/broken.jpg: a damaged JPEG",
        f"train: the transform raises on 2 of 300 samples, the first: cat/broken.jpg: {RAISED.reason}",
    ]


def test_a_stream_whose_samples_all_have_weight_0_is_trouble() -> None:
    (trouble,) = findings(stream(weights=WeightSummary(0.0, 0.0, 0.0, 4824))).troubles
    assert trouble.startswith("train: every sample has weight 0: nothing is learned from it")
    assert findings(stream(weights=WeightSummary(0.0, 2.0, 0.1, 4800))).troubles == []


@pytest.mark.parametrize(
    ("policy", "broken", "read", "said"),
    [
        ("substitute", BROKEN, 100, "12 are bad; bad_samples: {max_fraction: 0.08} would let the stream continue"),
        ("fail", BROKEN, 100, "12 are bad"),
        ("substitute", replace(BROKEN, effect="crash"), 100, "12 are bad"),
        ("substitute", RAISED, 100, "12 are bad; bad_samples: {max_fraction: 0.08} would let the stream continue"),
        ("substitute", RAISED, 8, "12 are bad"),
    ],
)
def test_a_sufficient_max_fraction_is_proposed_where_there_is_one(
    policy: BadPolicy, broken: UnreadableFile, read: int, said: str
) -> None:
    train = stream(read=read, unreadable=[broken] * 8, bad_samples=BadSampleOutcome(policy, 0.01, "12 are bad"))
    assert findings(train).troubles[1].endswith(f"stop this stream: {said}")


def test_one_stream_that_does_not_fit_silences_the_warning_about_all() -> None:
    small = stream(memory=replace(STREAM.memory, trainers=TrainerCapacity(0, 0, "train too small")))
    assert findings(small, together=TrainerCapacity(0, 0, "both too small")).warnings == []


def test_json_has_every_field_and_the_verdicts() -> None:
    found = json.loads(findings(stream(unreadable=[BROKEN])).to_json())
    assert (found["ok"], len(found["troubles"]), found["warnings"]) == (False, 1, [])
    assert set(found["streams"]["train"]) == set(StreamFinding.__dataclass_fields__)
    assert set(found) == {"ok", "troubles", "warnings", *CheckFindings.__dataclass_fields__}
    assert json.loads(findings().to_json())["ok"] is True


def test_a_cache_larger_than_the_free_disk_is_a_warning() -> None:
    (warning,) = findings(stream(cache=CacheEstimate("/c", 4824, 3 << 30, 3 << 30, 1 << 30))).warnings
    assert warning.startswith("train: the disk of /c has no room for the whole cache")
    assert findings(stream(cache=CacheEstimate("/c", 4824, 3 << 30, 3 << 30, 3 << 30))).warnings == []


def test_a_cache_too_small_for_one_sample_is_a_warning() -> None:
    (warning,) = findings(stream(cache=CacheEstimate("/c", 0, 8192, 3 << 30, 1 << 30))).warnings
    assert "cache.max leaves no room for a single sample" in warning


def test_an_order_that_decompresses_chunks_repeatedly_is_a_warning_with_a_remedy() -> None:
    chunks = UnpackingEstimate(600, 29 << 20, 0.75, 600, 4, 0.025)
    (warning,) = findings(stream(unpacking=chunks)).warnings
    assert warning == (
        "train: a batch of 32 decompresses 24 chunks of 29 MiB, but only 0.8 with shuffle: {kind: chunk, chunk: 600, "
        "buffer: 4}; use that setting, or shuffle the data once: streamd pack train DEST --shuffle"
    )
    assert findings(stream(unpacking=replace(chunks, per_sample=0.05))).warnings == []
