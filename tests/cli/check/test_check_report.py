"""The report that a person reads: it fits on one screen, unless everything is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from rich.cells import cell_len
from support.check_findings import BROKEN, STREAM, findings, stream

from streamd.cli.check.findings import (
    BadSampleOutcome,
    CacheEstimate,
    CheckFindings,
    ImageSummary,
    ReportOptions,
    StreamFinding,
    TrainerCapacity,
    UnpackingEstimate,
    WeightSummary,
    format_report,
)
from streamd.cli.check.labels import LabelFinding, MaskFinding, MaskFindings
from streamd.core.text import format_duration

SCREEN: Final = ReportOptions(bar_character="#")


def report_text(found: CheckFindings, look: ReportOptions = SCREEN) -> str:
    return "\n".join(line.text for line in format_report(found, look))


def report_of(train: StreamFinding, look: ReportOptions = SCREEN) -> str:
    return report_text(findings(train), look)


MEMORY: Final = (
    "  memory   a batch takes 1 MiB, a trainer 16 of them (16 MiB), the workers 5 MiB; "
    "room for 7 trainers, or for 29 with fewer batches each"
)


def test_a_good_stream_takes_ten_lines() -> None:
    assert report_text(findings()).splitlines()[:10] == [
        "train: 4,824 samples, 3 MiB in /data/train; 151 batches of 32, images of 128x96, height x width",
        "  label    category, 2 classes",
        "             cat  ##############################    2,500",
        "             dog  ############################      2,324",
        "  shuffle  full; shuffle score 1.00, the stored order has 0.03",
        "  files    JPEG 4,812, PNG 12; mostly 640x480 (4,800), 1 other size; 24 smaller than wanted, enlarged",
        MEMORY,
        "  epoch    takes about 41 s with 8 workers, reading alone 12 s",
        "",
        "memory: 64 MiB, 8 workers",
    ]
    assert report_text(findings()).endswith("Nothing stands in the way of serving this.")


def test_a_refusal_on_this_host_alone_is_worth_knowing() -> None:
    said = report_text(replace(findings(), refused_here=["cannot keep state in /s"]))
    assert "would refuse: cannot keep state in /s\n" in said
    assert said.endswith("Nothing in the configuration or the data stands in the way of serving this.")


def test_the_largest_and_the_smallest_of_many_classes_are_shown() -> None:
    classes = {f"c{number:02}": number for number in range(40)}
    train = stream(labels={"label": LabelFinding("category", classes, 39.0)})
    shown = [line.split()[0] for line in report_of(train).splitlines() if line.strip().startswith("c")]
    assert shown == [f"c{number:02}" for number in (*range(39, 29, -1), *range(9, -1, -1))]
    assert "... 20 more (--all shows them) ..." in report_of(train)
    everything = report_of(train, ReportOptions(everything=True))
    assert all(name in everything for name in classes)
    assert "more (--all" not in everything


RAISED = replace(BROKEN, effect="transform")


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (
            stream(shuffle_score=0.25, stored_score=0.0),
            "  shuffle  full; shuffle score 0.25, the stored order has 0.00\n",
        ),
        (
            stream(shuffle_score=None, stored_score=0.5),
            "  shuffle  full; the stored order has a shuffle score of 0.50\n",
        ),
        (stream(shuffle_score=None, stored_score=None), "  shuffle  full\n"),
        (
            stream(unpacking=UnpackingEstimate(600, 29 << 20, 0.025, 600, 4, 0.025)),
            "  chunks   compressed, 600 samples each, 29 MiB when decompressed; a batch takes 0.8 of them\n",
        ),
        (
            stream(weights=WeightSummary(0, 2.5, 0.25, 9)),
            "weights  0 to 2.5, mean 0.25; 9 of 4,824 samples have weight 0",
        ),
        (stream(weights=WeightSummary(0.5, 2.5, 1, 0)), "weights  0.5 to 2.5, mean 1\n"),
        (
            stream(unreadable=[RAISED, BROKEN, RAISED]),
            "bad      1 unreadable file and 2 samples that the transform",
        ),
        (stream(unreadable=[RAISED]), "bad      1 sample that the transform raises on"),
        (
            stream(unreadable=[BROKEN], bad_samples=BadSampleOutcome("fail", 0.01, "it is bad")),
            "bad_samples: fail: the first one stops the stream; the daemon would stop the stream",
        ),
        (stream(read=500), "read     500 of 4,824 files, evenly spread"),
        (
            stream(pictures=ImageSummary({"PNG": 9}, {"5x5": 9}, 1, 0, transparent=1200)),
            "PNG 9; all 5x5; 1,200 with transparency, placed on white",
        ),
        (stream(pictures=ImageSummary({"JPEG": 9}, {"5x5": 9}, 1, 0)), "JPEG 9; all 5x5"),
        (
            stream(cache=CacheEstimate("/c", 4824, 3 << 30, 3 << 30, 9 << 30)),
            "\n  cache    takes 3 GiB for all samples, in /c, where 9 GiB is free\n",
        ),
        (
            stream(cache=CacheEstimate("/c", 1206, 1 << 30, 4 << 30, 9 << 30)),
            "\n  cache    takes 1 GiB for 1,206 of 4,824 samples (4 GiB for all), in /c, where 9 GiB is free\n",
        ),
    ],
)
def test_the_report_of_a_stream_contains_the_line(train: StreamFinding, said: str) -> None:
    assert said in report_of(train)


def test_class_numbers_of_masks_have_bars_and_shares_of_the_pixels() -> None:
    shares = {"0": 0.75, "3": 0.24999, "9": 0.00001}
    counted = MaskFindings({"mask": MaskFinding(500, False, 3, shares, 255)})
    lines = report_of(stream(masks=counted)).splitlines()
    first = lines.index("  mask     3 class numbers; estimated shares of the pixels, from 500 masks")
    assert [line.split() for line in lines[first + 1 : first + 4]] == [
        ["0", "#" * 30, "75.00%"],
        ["3", "#" * 10, "25.00%"],
        ["9", "#", "below", "0.01%"],
    ]
    exact = MaskFindings({"mask": MaskFinding(4824, True, 3, shares, 255)})
    assert "3 class numbers; exact shares of the pixels of all 4,824 masks\n" in report_of(stream(masks=exact))


def test_a_class_without_images_has_no_bar_and_the_smallest_one_has() -> None:
    train = stream(labels={"label": LabelFinding("category", {"cat": 100_000, "owl": 1, "emu": 0}, 1.0)})
    bars = {line.split()[0]: line.count("#") for line in report_of(train).splitlines() if line.startswith(" " * 13)}
    assert bars == {"cat": 30, "owl": 1, "emu": 0}


def test_bars_are_aligned_for_class_names_of_any_script() -> None:
    train = stream(labels={"label": LabelFinding("category", {"猫": 2, "a\nb": 2, "x": 2}, 1.0)})
    bars = [line for line in report_of(train).splitlines() if "#" in line]
    assert [line.split()[0] for line in bars] == ["猫", "a\\nb", "x"]
    assert len({cell_len(line[: line.index("#")]) for line in bars}) == 1


def test_number_labels_show_their_range_and_string_labels_only_their_name() -> None:
    angle = LabelFinding("float", {}, least=-1.0, most=0.5, mean=0.125, std=0.25)
    said = report_of(stream(labels={"angle": angle, "road": LabelFinding("string", {})}))
    assert "  angle    float from -1 to 0.5, mean 0.125, standard deviation 0.25" in said
    assert "  road     string" in said


def test_twenty_unreadable_files_are_named_and_all_of_them_with_everything() -> None:
    bad = [replace(BROKEN, file=f"{number:02}.jpg") for number in range(23)]
    train = stream(unreadable=bad, bad_samples=BadSampleOutcome("mask", 0.01, None, 241))
    assert "19.jpg: a damaged JPEG" in report_of(train)
    assert "20.jpg" not in report_of(train)
    assert "... 3 more (--all or --json names them)" in report_of(train)
    assert (
        "bad_samples: mask: zeros with weight 0 take the place of each bad image; the stream continues, since up to "
        "241 pictures may be bad" in report_of(train)
    )
    assert "22.jpg" in report_of(train, ReportOptions(everything=True))


def test_copies_are_counted_and_named_with_everything() -> None:
    train = stream(duplicates=[["a.jpg", "b.jpg", "c.jpg"]])
    assert "copies   2 files with the same content as another (--all names them)" in report_of(train)
    assert "a.jpg = b.jpg = c.jpg" in report_of(train, ReportOptions(everything=True))


def test_a_link_to_a_file_is_not_a_copy_of_it() -> None:
    train = stream(duplicates=[["a.jpg", "a.jpg", "b.jpg"], ["c.jpg", "c.jpg"]])
    assert "copies   1 file with the same content as another" in report_of(train)
    everything = report_of(train, ReportOptions(everything=True))
    assert [line.strip() for line in everything.splitlines() if " = " in line] == ["a.jpg = b.jpg"]


def test_the_report_says_when_there_is_no_image_and_no_room() -> None:
    train = stream(
        pictures=ImageSummary({}, {}, 0, 0),
        memory=replace(STREAM.memory, trainers=TrainerCapacity(0, 0, "'train' does not fit")),
    )
    assert "files    none of them is an image" in report_of(train)
    assert "no room for a single trainer" in report_of(train)
    assert report_of(train).endswith("Trouble:\n  'train' does not fit")


def test_troubles_and_warnings_come_last_under_their_names() -> None:
    said = report_text(findings(stream(unreadable=[BROKEN]), notes=["skipped 3 files"]))
    assert said.endswith("Worth knowing:\n  skipped 3 files")
    assert "\nTrouble:\n  train: 1 unreadable file" in said
    assert "Nothing stands in the way" not in said


def test_without_a_stream_the_report_has_no_epoch() -> None:
    said = report_text(CheckFindings(1 << 30, 4, {}, refused=["streams.a.source: kind lmdb is not served"]))
    assert said == "memory: 1 GiB, 4 workers\n\nTrouble:\n  streams.a.source: kind lmdb is not served"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0123, "12 ms"),
        (3.44, "3.4 s"),
        (41.2, "41 s"),
        (119, "119 s"),
        (150, "2.5 min"),
        (900, "15 min"),
        (9000, "2.5 h"),
    ],
)
def test_durations_have_two_digits_and_a_unit(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said
