"""Bookkeeping of systems, disks and programs is no data, whichever source lists it; what could be a class is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.source_configs import Filelist, Folder, Npy, Stream, Tar, assert_refused, put, scanned, unlabelled
from support.tar_shards import pack_folder

from streamd.daemon.starter.survey import survey_data
from streamd.dataset.paths import patterns
from streamd.dataset.paths.patterns import BOOKKEEPING_NAMES, LeftOutNames, has_bookkeeping
from streamd.dataset.scan import scan_source
from streamd.dataset.yolo import YoloSource

# Each folder and file is made by a program, beside data or in them.
FOLDERS = {
    "__MACOSX": "what macOS adds to a zip",
    ".Spotlight-V100": "of macOS",
    "Network Trash Folder": "of macOS",
    "$RECYCLE.BIN": "the recycle bin of Windows",
    "$Recycle.Bin": "the recycle bin of Windows",
    "RECYCLER": "the recycle bin of Windows",
    "System Volume Information": "of Windows, on each of its disks",
    "FOUND.000": "what chkdsk of Windows found on a damaged disk",
    "@eaDir": "thumbnails of a Synology NAS",
    "@tmp": "of a Synology NAS",
    "#snapshot": "of a Synology NAS",
    "#recycle": "the recycle bin of a NAS",
    ".@__thumb": "thumbnails of a QNAP NAS",
    "@Recycle": "of a QNAP NAS",
    "~snapshot": "earlier states of a file system",
    ".zfs": "earlier states of a file system",
    "lost+found": "what fsck found on a damaged disk",
    "LOST.DIR": "what Android found on a damaged card",
    ".Trash-1000": "the trash of a desktop",
    ".Recycle.Bin": "the trash of a desktop",
    ".thumbnails": "thumbnails",
    ".ipynb_checkpoints": "copies that Jupyter keeps",
    "__pycache__": "compiled Python",
    ".stversions": "of Syncthing",
    ".dropbox.cache": "of Dropbox",
    ".tmp.driveupload": "of Google Drive",
    ".picasaoriginals": "what Picasa keeps of edited pictures",
    ".~tmp~": "not finished by rsync",
    ".git": "hidden",
}
IMAGES = {
    "._1.jpg": "what macOS keeps beside a file on other disks",
    "SYNOPHOTO_THUMB_XL.jpg": "thumbnails of a Synology NAS",
    "SYNOPHOTO:THUMB_M.jpg": "thumbnails of a Synology NAS",
    ".trashed-1700000000-1.jpg": "the trash of Android",
    "~syncthing~1.jpg": "of Syncthing",
    ".1.jpg": "hidden",
}
OTHERS = {
    ".DS_Store": "of macOS",
    "Icon\r": "of macOS",
    "Thumbs.db": "thumbnails of Windows",
    "ehthumbs_vista.db": "thumbnails of Windows",
    "Desktop.ini": "how Windows shows a folder",
    "~$notes.docx": "open documents of Office",
    ".nfs000000000012abcd": "deleted while it was open",
    ".syncthing.1.jpg.tmp": "of Syncthing",
    ".1.jpg.Ab12Cd": "not finished by rsync",
}
CLASSES = [
    *("thumbs", "thumbnails", "temp", "tmp", "cache", "trash", "recycle", "recycler", "recycled", "recycle.bin"),
    *("snapshot", "snapshots", "backup", "lost", "found", "icon", "desktop", "eaDir", "syno", "git", "dropbox"),
    *("system", "MACOSX", "pycache", "@home", "#1", "$5", "~x", "_x", "lost-and-found", "found.0"),
]


def add_bookkeeping(folder: Path) -> None:
    put(folder, *(f"{each}/1.jpg/deep.jpg" for each in FOLDERS), *IMAGES, *OTHERS)


def classes(root: Path) -> list[bytes]:
    return [*scanned(Folder(root)).files]


def flat(root: Path) -> list[bytes]:
    return [*unlabelled(Folder(root)).files]


def yolo(root: Path) -> list[bytes]:
    (root.parent / "data.yaml").write_text(f"path: {root}\ntrain: .\nnames: [a]\n")
    return [*scan_source(Stream(YoloSource(root.parent / "data.yaml", "train"), {}), lambda _: None).files]


def tar(root: Path) -> list[bytes]:
    pack_folder(root.parent / "0.tar", root)
    return [*unlabelled(Tar(str(root.parent / "0.tar"))).files]


LISTINGS = [classes, flat, yolo, tar]


@pytest.mark.parametrize("listed", LISTINGS)
def test_bookkeeping_changes_no_list_and_is_counted_with_its_reason(
    listed: Callable[[Path], list[bytes]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "data", "cat/1.jpg", "dog/2.jpg")
    before = listed(tmp_path / "data")
    add_bookkeeping(tmp_path / "data")
    add_bookkeeping(tmp_path / "data" / "cat")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        caplog.clear()
        assert listed(tmp_path / "data") == before
    assert "left out: 2 files in #recycle (the recycle bin of a NAS), " in caplog.text
    assert f" and {len(FOLDERS | IMAGES | OTHERS) - 9} more" in caplog.text  # eight are named, and SYNO* are two


@pytest.mark.parametrize("listed", LISTINGS)
def test_a_name_that_could_be_a_class_is_data(listed: Callable[[Path], list[bytes]], tmp_path: Path) -> None:
    put(tmp_path / "data", *(f"{each}/1.jpg" for each in CLASSES))
    assert len(listed(tmp_path / "data")) == len(CLASSES)


def test_each_name_has_its_reason() -> None:
    for name, what in (FOLDERS | IMAGES | OTHERS).items():
        found = LeftOutNames()
        found.add_file(os.fsencode(name))
        assert f"({what})" in str(found), name
    untried = {each.what for each in BOOKKEEPING_NAMES} - {*FOLDERS.values(), *IMAGES.values(), *OTHERS.values()}
    assert untried == set()
    assert not any(has_bookkeeping(name) for name in (b".", b"..", b"a.jpg"))


def test_a_pattern_finds_bookkeeping_only_where_it_spells_it(tmp_path: Path) -> None:
    for name in ("a/1.npy", "@eaDir/1.npy", ".b/1.npy"):
        (tmp_path / name).parent.mkdir()
        np.save(tmp_path / name, np.zeros((2, 4, 4, 3), np.uint8))
    assert scanned(Npy(f"{tmp_path}/*/*.npy")).files == [b"a/1.npy"]
    assert_refused(Npy(f"{tmp_path}/@*/*.npy"), "matches no .npy file")
    assert scanned(Npy(f"{tmp_path}/@eaDir/*.npy")).files == [b"1.npy"]


def test_a_list_that_names_bookkeeping_is_served_as_it_is_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / ".cache" / "data"
    put(root, "1.jpg", "@eaDir/1.jpg", ".mine/1.jpg")
    (root / "list.txt").write_text(f"{root}/1.jpg\n@eaDir/1.jpg\n.mine/1.jpg\n{root}/@eaDir/1.jpg\n")
    assert len(scanned(Filelist(root / "list.txt")).files) == 4
    said = "list.txt: 2 rows name files of a system or a program and no data, such as '@eaDir/1.jpg'; remove these rows"
    assert said in caplog.messages


def test_the_survey_for_a_first_configuration_sees_no_bookkeeping(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "dog/2.jpg")
    before = survey_data(tmp_path)
    add_bookkeeping(tmp_path)
    assert survey_data(tmp_path) == before


def test_folders_that_are_left_out_are_counted_up_to_a_bound_and_may_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "@eaDir/a/1.jpg", "@eaDir/b/1.jpg", "@eaDir/c/1.jpg", "lost+found/1.jpg")
    monkeypatch.setattr(patterns, "_COUNTED_FILES", 2)
    found = LeftOutNames()
    found.add_folder(os.fsencode(tmp_path / "@eaDir"))
    found.add_folder(os.fsencode(tmp_path / "lost+found" / "gone" / "lost+found"))
    assert str(found) == (
        "more than 2 files in @eaDir (thumbnails of a Synology NAS), "
        "lost+found (what fsck found on a damaged disk; not all of it can be read)"
    )
