"""The rows of a clip's frames: found by a column of sequences and one of their order, or refused with the line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.source_configs import Label, Stream, Table, put

from streamd.dataset.files import TableSource
from streamd.dataset.manifest.types import ScannedSamples
from streamd.dataset.scan import scan_source
from streamd.dataset.sources import FrameRule, ImageSource
from streamd.errors import ConfigError

RULE: dict[str, Any] = {"by": "drive", "order": "frame", "offsets": (-1, 0)}
TABLE = "file,drive,frame\na,x,2\nb,y,1\nc,x,10\nd,y,0\ne,x,1\n"
SORTED = {"a": "ea", "b": "db", "c": "ac", "d": "dd", "e": "ee"}  # with the frame before, by numbers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, *"abcde")
    return tmp_path


def scan(folder: Path, text: str, **rule: Any) -> ScannedSamples:
    (folder / "t.csv").write_text(text)
    image = ImageSource(None, frames=FrameRule(**(RULE | rule)))
    return scan_source(Stream(Table(folder / "t.csv"), {}, images={"clip": image}), lambda _: None)


def refusal(folder: Path, text: str, **rule: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        scan(folder, text, **rule)
    return str(caught.value).removeprefix("streams.train.images.clip.frames")


def clips(found: ScannedSamples) -> dict[str, str]:
    """The names of the frames of each sample's clip, by the name of its own file."""
    image = found.images["clip"]
    assert image.frames is not None
    shown = ["".join(image.files[row].decode() for row in rows) for rows in image.frames.tolist()]
    return dict(zip((name.decode() for name in found.files), shown, strict=True))


def test_frames_are_neighbours_in_the_order_of_numbers(folder: Path) -> None:
    found = scan(folder, TABLE)
    assert clips(found) == SORTED
    assert found.images["clip"].sizes.tolist() == [1] * 5
    assert clips(scan(folder, TABLE, offsets=(2, 0, -1))) == {
        "a": "cae", "b": "bbd", "c": "cca", "d": "bdd", "e": "cee"
    }  # fmt: skip


def test_rows_that_lack_a_frame_are_left_out_with_their_labels(folder: Path) -> None:
    found = scan(folder, TABLE, edge="drop")
    assert clips(found) == {"a": "ea", "b": "db", "c": "ac"}
    assert found.sizes.size == found.mtimes_ns.size == 3
    (folder / "t.csv").write_text(TABLE)
    image = ImageSource(None, frames=FrameRule(**(RULE | {"edge": "drop"})))
    labelled = Stream(Table(folder / "t.csv"), {"frame": Label("int")}, images={"clip": image})
    scanned = scan_source(labelled, lambda _: None)
    assert scanned.labels["frame"].tolist() == [2, 1, 10]
    assert scanned.specs["frame"].mean == pytest.approx(13 / 3)


def test_a_second_column_of_pictures_has_frames_of_its_own(folder: Path) -> None:
    (folder / "t.csv").write_text("file,other,drive,frame\na,c,x,1\nb,d,x,2\n")
    rule = FrameRule(**RULE)
    images = {"clip": ImageSource("file", frames=rule), "still": ImageSource("other")}
    source = TableSource(folder / "t.csv")
    found = scan_source(Stream(source, {}, images=images), lambda _: None)
    assert clips(found) == {"a": "aa", "b": "ab"}
    assert found.images["still"].frames is None
    assert [*found.images["still"].files] == [b"c", b"d"]


def test_selected_samples_keep_only_the_pictures_that_their_clips_show(folder: Path) -> None:
    import numpy as np  # noqa: PLC0415 - for this test alone

    image = scan(folder, TABLE).images["clip"].select_rows(np.array([1, 3]))
    assert image.files == [b"b", b"d"]
    assert image.frames is not None
    assert image.frames.tolist() == [[1, 0], [1, 1]]


def test_an_order_of_texts_is_that_of_their_bytes_and_unpadded_numbers_are_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        padded = "file,drive,frame\na,x,f02\nb,x,f10\nc,x,f01\nd,y,f01\ne,y,f02\n"
        assert clips(scan(folder, padded)) == {"a": "ca", "b": "ab", "c": "cc", "d": "dd", "e": "de"}
        assert caplog.messages == []
        assert clips(scan(folder, padded.replace("f02", "f2")))["a"] == "ba"
    assert caplog.messages[0] == (
        "streams.train.images.clip.frames.order: column 'frame' holds texts, so that 'f10' comes before 'f2'; if that "
        "is not the order, use a column of numbers, or write them with leading zeros"
    )


def test_a_sequence_of_one_row_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        shown = clips(scan(folder, TABLE.replace("a,x", "a,z")))
    assert shown == {"a": "aa", "b": "db", "c": "ec", "d": "dd", "e": "ee"}
    assert caplog.messages[0] == (
        "streams.train.images.clip.frames.by: t.csv, line 2 is a sequence of one row, so its clip shows one picture in "
        "all frames; write edge: drop to leave such rows out, or correct the column if that is a mistake"
    )


def test_what_is_not_clear_is_refused_with_the_line(folder: Path) -> None:
    assert refusal(folder, TABLE.replace("c,x,10", "c,x,1")) == (
        ".order: t.csv, line 6 has the same frame as t.csv, line 4, in the same drive, so the order of their frames is "
        "not clear; remove one of them, or choose another column"
    )
    assert refusal(folder, TABLE.replace("c,x,10", "c,x,ten")) == (
        ".order: column 'frame' has numbers, but t.csv, line 4 has 'ten'; write numbers into all rows, or texts of "
        "equal length"
    )
    assert refusal(folder, TABLE, by="file") == (
        ".by: each row has a value of its own in column 'file', so no clip has a neighbour; choose the column that is "
        "equal within a sequence, such as the drive or the video"
    )
    assert refusal(folder, TABLE, offsets=(-3, 0), edge="drop") == (
        ": no row has all of its frames, since no sequence of column 'drive' is as long as the offsets [-3, 0] reach; "
        "use edge: repeat, or smaller offsets"
    )
    assert refusal(folder, TABLE, by="drives").startswith(".by: ")
    assert "did you mean 'drive'?" in refusal(folder, TABLE, by="drives")
    assert "line 3" in refusal(folder, TABLE.replace("b,y,1", "b,,1"))
    assert "line 3" in refusal(folder, TABLE.replace("b,y,1", "b,y,"))
