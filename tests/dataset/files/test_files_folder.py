"""A folder becomes samples in byte order, or an error that says what to do."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.source_configs import Folder, Label, Stream, put, scanned, unlabelled

from streamd.dataset.files import folder
from streamd.dataset.scan import scan_source
from streamd.errors import ConfigError


def test_sub_folders_become_classes_in_byte_order(tmp_path: Path) -> None:
    put(tmp_path, "dog/b.jpg", "cat/z.png", "cat/a.JPG", "Zebra/1.webp")
    found = scanned(Folder(tmp_path))
    assert found.files == [b"Zebra/1.webp", b"cat/a.JPG", b"cat/z.png", b"dog/b.jpg"]
    assert found.labels["label"].tolist() == [0, 1, 1, 2]
    assert found.specs["label"].classes == ("Zebra", "cat", "dog")
    assert found.specs["label"].counts == (1, 2, 1)
    assert found.sizes.tolist() == [12, 9, 9, 9]
    assert found.mtimes_ns.tolist() == [(tmp_path / os.fsdecode(name)).stat().st_mtime_ns for name in found.files]


def test_a_class_comes_whole_before_one_whose_name_goes_on_from_it(tmp_path: Path) -> None:
    put(tmp_path, "a/x.jpg", "a-b/x.jpg")  # '-' sorts before '/', so whole paths would come the other way round
    assert scanned(Folder(tmp_path)).files == [b"a/x.jpg", b"a-b/x.jpg"]


def test_within_a_class_paths_are_in_byte_order_at_any_depth(tmp_path: Path) -> None:
    put(tmp_path, "c/s/deep/1.jpg", "c/s-1.jpg", "c/s.jpg", "c/s0.jpg")
    files = scanned(Folder(tmp_path)).files
    assert files == sorted(files)
    assert len(files) == 4


def test_numbered_folders_sort_as_numbers(tmp_path: Path) -> None:
    put(tmp_path, *(f"{digit}/x.jpg" for digit in range(11)))
    found = scanned(Folder(tmp_path))
    assert found.files[:3] == [b"0/x.jpg", b"1/x.jpg", b"10/x.jpg"]
    assert found.labels["label"].tolist()[:3] == [0, 1, 10]
    assert found.specs["label"].classes == tuple(range(11))


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    put(tmp_path, "b.jpeg", "a.bmp")
    found = scanned(Folder(tmp_path))
    assert found.files == [b"a.bmp", b"b.jpeg"]
    assert (found.labels, found.specs) == ({}, {})


def test_labels_wanted_of_a_flat_folder_are_refused_with_the_ways_out(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    with pytest.raises(ConfigError, match=r"flat folder has no labels, but animal is wanted.*kind table.*labels: \{\}"):
        scanned(Folder(tmp_path), animal=Label())


def test_images_beside_sub_folders_are_refused_with_both_named(tmp_path: Path) -> None:
    put(tmp_path, "loose.jpg", "cat/a.jpg")
    with pytest.raises(ConfigError, match=r"1 image \('loose.jpg'\) beside 1 sub-folder \('cat'\)"):
        scanned(Folder(tmp_path))


def test_without_labels_images_may_lie_at_any_depth_in_byte_order_of_their_paths(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "loose.jpg", "cat/a.jpg", "cat-2/a.jpg", "cat/deep/b.jpg", "empty/notes.txt")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        found = unlabelled(Folder(tmp_path))
    assert found.files == [b"cat-2/a.jpg", b"cat/a.jpg", b"cat/deep/b.jpg", b"loose.jpg"]
    assert (found.labels, found.specs) == ({}, {})
    assert [record.getMessage().rpartition("path: ")[2] for record in caplog.records] == [
        "skipped 1 file that is no image: 1 .txt"
    ]


def test_hidden_names_and_other_files_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "cat/a.jpg", "cat/.b.jpg", ".git/c.jpg", "cat/notes.txt", "cat/more.txt", "cat/README")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        assert scanned(Folder(tmp_path)).files == [b"cat/a.jpg"]
    assert "skipped 3 files that are no images: 2 .txt, 1 no suffix" in caplog.text


def test_hidden_folders_are_left_out_at_any_depth_and_what_systems_leave_behind_is_no_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "cat/a.jpg", "cat/sub/.cache/b.jpg", "cat/.thumbs/deep/c.jpg", ".ipynb_checkpoints/d.jpg")
    put(tmp_path, "__MACOSX/cat/e.jpg", "cat/__MACOSX/f.jpg", "cat/Thumbs.db", "cat/desktop.ini", "Thumbs.db")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        found = scanned(Folder(tmp_path))
    assert (found.files, found.specs["label"].classes) == ([b"cat/a.jpg"], ("cat",))
    assert "skipped 5 files that are no images: 2 " in caplog.text
    assert {"2 __MACOSX", "2 .db", "1 .ini"} <= set(caplog.text.strip().rpartition(": ")[2].split(", "))


def test_a_flat_folder_stays_flat_beside_what_an_archive_left(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "__MACOSX/._a.jpg")
    assert scanned(Folder(tmp_path)).files == [b"a.jpg"]


def test_a_class_may_come_as_its_name(tmp_path: Path) -> None:
    put(tmp_path, "käse/a.jpg", "dog/a.jpg", "dog/b.jpg")
    found = scanned(Folder(tmp_path), name=Label("string"))
    assert [text.decode() for text in found.labels["name"].tolist()] == ["dog", "dog", "käse"]
    assert (found.specs["name"].text_bytes, found.specs["name"].classes) == (5, ())


def test_tags_of_a_folder_are_refused_with_what_to_use(tmp_path: Path) -> None:
    put(tmp_path, "red;round/a.jpg")
    with pytest.raises(ConfigError, match=r"labels\.t: a folder gives each image one class.* no tags; use category"):
        scanned(Folder(tmp_path), t=Label("tags"))


def test_an_empty_class_is_a_class_and_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "cat/a.jpg")
    (tmp_path / "ant").mkdir()
    assert scanned(Folder(tmp_path)).specs["label"].counts == (0, 1)
    assert "1 sub-folder holds no image and is a class all the same: 'ant'" in caplog.text


def test_a_label_may_have_another_name_and_an_order_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg", "dog/a.jpg")
    found = scanned(Folder(tmp_path), animal=Label(classes=("dog", "cat")))
    assert found.labels["animal"].tolist() == [1, 0]
    assert found.specs["animal"].classes == ("dog", "cat")
    assert found.fixed == {"animal"}


def test_a_sub_folder_outside_the_configured_classes_is_refused_with_the_near_one(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg", "dogs/a.jpg")
    with pytest.raises(ConfigError, match=r"'dogs' \(sub-folder 'dogs'\) is not among.*did you mean 'dog'"):
        scanned(Folder(tmp_path), label=Label(classes=("cat", "dog")))


def test_folder_names_can_be_numbers(tmp_path: Path) -> None:
    put(tmp_path, "0.5/a.jpg", "-1.5/a.jpg")
    found = scanned(Folder(tmp_path), angle=Label("float"))
    assert found.labels["angle"].tolist() == [-1.5, 0.5]
    assert found.labels["angle"].dtype == "float32"


@pytest.mark.parametrize("name", ["cat", "1_0"])
def test_a_folder_name_that_is_no_number_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}/a.jpg")
    with pytest.raises(ConfigError, match=f"sub-folder '{name}' is no number"):
        scanned(Folder(tmp_path), angle=Label("int"))


def test_two_labels_or_a_column_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg")
    with pytest.raises(ConfigError, match="a folder gives one label"):
        scanned(Folder(tmp_path), a=Label(), b=Label())
    with pytest.raises(ConfigError, match="a folder has no column 'kind'"):
        scanned(Folder(tmp_path), a=Label(source="kind"))


def test_a_missing_folder_names_the_nearest_that_exists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        scanned(Folder(tmp_path / "data" / "trian"))
    assert f"there is no '{tmp_path}/data/trian'" in str(caught.value)
    assert f"nearest folder that exists is '{tmp_path}'" in str(caught.value)
    assert str(caught.value).startswith("streams.train.source.path: ")


def test_a_file_in_place_of_a_folder_points_to_tables(tmp_path: Path) -> None:
    put(tmp_path, "list.csv")
    with pytest.raises(ConfigError, match="is a file; kind folder wants a folder, a list of files is kind table"):
        scanned(Folder(tmp_path / "list.csv"))


def test_a_folder_without_images_says_what_was_looked_for(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.svg")
    with pytest.raises(ConfigError, match=r"looked for \.jpg \.jpeg .* \.bmp \.gif \.tif .*other files: 1 \.svg"):
        scanned(Folder(tmp_path))


def test_a_folder_that_may_not_be_read_names_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "cat/a.jpg")
    real = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"/cat"):
            raise PermissionError(13, "Permission denied", os.fsdecode(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr("streamd.dataset.paths.confined.os.geteuid", lambda: 4_000_000)
    with pytest.raises(ConfigError, match=r"user 4000000 may not read '.*/cat'"):
        scanned(Folder(tmp_path))


def test_links_within_the_root_are_followed_and_named_by_what_they_lead_to(tmp_path: Path) -> None:
    put(tmp_path, "cat/b.jpg", "cat/pool/c.jpg")
    (tmp_path / "cat" / "a.jpg").symlink_to(tmp_path / "cat" / "b.jpg")
    (tmp_path / "dog").symlink_to("cat/pool")
    found = scanned(Folder(tmp_path))
    assert found.files == [b"cat/b.jpg", b"cat/b.jpg", b"cat/pool/c.jpg", b"cat/pool/c.jpg"]
    assert found.labels["label"].tolist() == [0, 0, 0, 1]
    assert found.sizes.tolist() == [9, 9, 14, 14]


@pytest.mark.parametrize("link", ["cat/out.jpg", "dog"])
def test_a_link_out_of_the_root_is_refused_by_name(tmp_path: Path, link: str) -> None:
    put(tmp_path, "data/cat/a.jpg", "secret/b.jpg")
    target = "secret/b.jpg" if link.endswith(".jpg") else "secret"
    (tmp_path / "data" / link).symlink_to(tmp_path / target)
    with pytest.raises(ConfigError, match=f"the link '.*/data/{link}' leads to '.*/{target}', out of"):
        scanned(Folder(tmp_path / "data"))


def test_a_root_that_begins_alike_is_outside(tmp_path: Path) -> None:
    put(tmp_path, "data/cat/a.jpg", "data2/b.jpg")
    (tmp_path / "data" / "cat" / "b.jpg").symlink_to("../../data2/b.jpg")
    with pytest.raises(ConfigError, match="out of"):
        scanned(Folder(tmp_path / "data"))


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg")
    (tmp_path / "cat" / "again").symlink_to("..")
    with pytest.raises(ConfigError, match="leads back to"):
        scanned(Folder(tmp_path))


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg")
    (tmp_path / "cat" / "b.jpg").symlink_to("gone.jpg")
    with pytest.raises(ConfigError, match=r"the link '.*b\.jpg' leads nowhere"):
        scanned(Folder(tmp_path))


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    put(tmp_path, "real/cat/a.jpg")
    (tmp_path / "data").symlink_to("real")
    found = scanned(Folder(tmp_path / "data"))
    assert (found.root, found.files) == (tmp_path / "data", [b"cat/a.jpg"])


def test_a_fifo_posing_as_an_image_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg")
    os.mkfifo(tmp_path / "cat" / "b.jpg")
    with pytest.raises(ConfigError, match="is no regular file"):
        scanned(Folder(tmp_path))


def test_names_that_are_no_utf8_are_files_but_no_classes(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    odd = os.fsencode(tmp_path) + b"/cat/\xff.jpg"
    Path(os.fsdecode(odd)).touch()
    assert scanned(Folder(tmp_path)).files == [b"cat/\xff.jpg"]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe")).mkdir()
    with pytest.raises(ConfigError, match=r"'\\\\xfe' is no UTF-8"):
        scanned(Folder(tmp_path))


def test_progress_ends_at_the_number_of_files(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg", "cat/b.jpg")
    seen: list[int] = []
    scan_source(Stream(Folder(tmp_path)), seen.append)
    assert seen[-1] == 2


@pytest.fixture
def when_listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done as soon as the first folder is listed."""

    def arrange(do: Callable[[], object]) -> None:
        entries, left = folder._FolderWalk.list_folder, [do]

        def listed(walk: folder._FolderWalk, name: bytes) -> tuple[list[bytes], list[bytes]]:
            found = entries(walk, name)
            if left:
                left.pop()()
            return found

        monkeypatch.setattr(folder._FolderWalk, "list_folder", listed)

    return arrange


WhenListed = Callable[[Callable[[], object]], None]


def test_a_file_that_is_removed_while_its_folder_is_listed_is_left_out_and_told_of(
    tmp_path: Path, when_listed: WhenListed, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    when_listed((tmp_path / "b.jpg").unlink)
    assert scanned(Folder(tmp_path)).files == [b"a.jpg", b"c.jpg"]
    assert "1 file or folder was removed while the folder was listed, and left out: 'b.jpg'" in caplog.text


def test_a_class_that_is_removed_while_the_folder_is_listed_is_none(tmp_path: Path, when_listed: WhenListed) -> None:
    put(tmp_path, "cat/a.jpg", "cow/b.jpg", "dog/c.jpg")
    when_listed(lambda: shutil.rmtree(tmp_path / "cow"))
    found = scanned(Folder(tmp_path))
    assert found.files == [b"cat/a.jpg", b"dog/c.jpg"]
    assert found.specs["label"].classes == ("cat", "dog")
    assert found.labels["label"].tolist() == [0, 1]


def test_a_folder_that_goes_away_as_a_whole_is_refused(tmp_path: Path, when_listed: WhenListed) -> None:
    root = tmp_path / "data"
    put(root, "a.jpg", "b.jpg")

    def unmount() -> None:
        root.rename(tmp_path / "elsewhere")
        put(root, "a.jpg")

    when_listed(unmount)
    with pytest.raises(ConfigError, match=r"another folder took the place of '.*data' while it was listed"):
        scanned(Folder(root))
