"""A folder becomes samples in byte order, or an error that says what to do."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.source_configs import Folder, Label, assert_refused, put, refusal, scanned, unlabelled

from streamd.dataset.files import folder

PETS = {"label": Label(classes=("cat", "dog"))}
TAGS = {"t": Label("tags")}


def test_sub_folders_become_classes_in_byte_order(tmp_path: Path) -> None:
    put(tmp_path, "dog/b.jpg", "cat/z.png", "cat/a.JPG", "Zebra/1.webp")
    found = scanned(Folder(tmp_path))
    assert found.files == [b"Zebra/1.webp", b"cat/a.JPG", b"cat/z.png", b"dog/b.jpg"]
    assert found.labels["label"].tolist() == [0, 1, 1, 2]
    assert found.specs["label"].classes == ("Zebra", "cat", "dog")
    assert found.specs["label"].counts == (1, 2, 1)
    assert found.sizes.tolist() == [12, 9, 9, 9]
    assert found.mtimes_ns.tolist() == [(tmp_path / os.fsdecode(name)).stat().st_mtime_ns for name in found.files]


def test_all_files_of_a_class_precede_those_of_a_class_whose_name_it_begins(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("names", "labels", "says"),
    [
        (
            ["a.jpg"],
            {"animal": Label()},
            r"flat folder has no labels, but the configuration asks for: animal;.*kind table.*labels: \{\}",
        ),
        (["loose.jpg", "cat/a.jpg"], {}, r"holds both 1 image \('loose.jpg'\) and 1 sub-folder \('cat'\)"),
        (["red;round/a.jpg"], TAGS, r"labels\.t: a folder gives each image one class.* not type tags; use category"),
        (["cat/a.jpg", "dogs/a.jpg"], PETS, r"'dogs' \(sub-folder 'dogs'\) is not one of.*did you mean 'dog'\?$"),
        (["cat/a.jpg"], {"angle": Label("int")}, "sub-folder 'cat' is not a number"),
        (["1_0/a.jpg"], {"angle": Label("int")}, "sub-folder '1_0' is not a number"),
        (["cat/a.jpg"], {"a": Label(), "b": Label()}, "a folder gives one label"),
        (["cat/a.jpg"], {"a": Label(source="kind")}, "a folder has no column 'kind'"),
        (["cat/a.svg"], {}, r"looked for \.jpg \.jpeg .* \.bmp \.gif \.tif .*other files: 1 \.svg"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_a_folder_that_makes_no_samples_or_labels_is_refused(
    tmp_path: Path, names: list[str], labels: dict[str, Label], says: str
) -> None:
    put(tmp_path, *names)
    assert_refused(Folder(tmp_path), says, **labels)


def test_without_labels_images_may_lie_at_any_depth_in_byte_order_of_their_paths(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "loose.jpg", "cat/a.jpg", "cat-2/a.jpg", "cat/deep/b.jpg", "empty/notes.txt")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        found = unlabelled(Folder(tmp_path))
    assert found.files == [b"cat-2/a.jpg", b"cat/a.jpg", b"cat/deep/b.jpg", b"loose.jpg"]
    assert (found.labels, found.specs) == ({}, {})
    assert [record.getMessage().rpartition("path: ")[2] for record in caplog.records] == [
        "skipped 1 file that is not an image: 1 .txt"
    ]


def test_hidden_and_other_files_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "cat/a.jpg", "cat/.b.jpg", ".git/c.jpg", "cat/notes.txt", "cat/more.txt", "cat/README")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        assert scanned(Folder(tmp_path)).files == [b"cat/a.jpg"]
    assert "skipped 3 files that are not images: 2 .txt, 1 no suffix" in caplog.text


def test_hidden_folders_and_folders_of_operating_systems_are_skipped_at_any_depth(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "cat/a.jpg", "cat/sub/.cache/b.jpg", "cat/.thumbs/deep/c.jpg", ".ipynb_checkpoints/d.jpg")
    put(tmp_path, "__MACOSX/cat/e.jpg", "cat/__MACOSX/f.jpg", "cat/Thumbs.db", "cat/desktop.ini", "Thumbs.db")
    with caplog.at_level(logging.INFO, "streamd.sources"):
        found = scanned(Folder(tmp_path))
    assert (found.files, found.specs["label"].classes) == ([b"cat/a.jpg"], ("cat",))
    assert "skipped" not in caplog.text
    assert set(caplog.text.strip().rpartition(": ")[2].split(", ")) == {
        "2 files in __MACOSX (what macOS adds to a zip)",
        "1 file in .ipynb_checkpoints (copies that Jupyter keeps)",
        "1 file in .thumbs (hidden)",
        "1 file in .cache (hidden)",
        "2 Thumbs.db (thumbnails of Windows)",
        "1 desktop.ini (how Windows shows a folder)",
    }


def test_a_flat_folder_may_have_a_macosx_folder_beside_its_images(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "__MACOSX/._a.jpg")
    assert scanned(Folder(tmp_path)).files == [b"a.jpg"]


def test_a_class_may_be_served_as_a_string(tmp_path: Path) -> None:
    put(tmp_path, "käse/a.jpg", "dog/a.jpg", "dog/b.jpg")
    found = scanned(Folder(tmp_path), name=Label("string"))
    assert [text.decode() for text in found.labels["name"].tolist()] == ["dog", "dog", "käse"]
    assert (found.specs["name"].text_bytes, found.specs["name"].classes) == (5, ())


def test_an_empty_folder_is_a_class_and_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "cat/a.jpg")
    (tmp_path / "ant").mkdir()
    assert scanned(Folder(tmp_path)).specs["label"].counts == (0, 1)
    assert "1 sub-folder holds no image, but is still a class: 'ant'" in caplog.text


def test_a_label_may_have_another_name_and_order_of_classes(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg", "dog/a.jpg")
    found = scanned(Folder(tmp_path), animal=Label(classes=("dog", "cat")))
    assert found.labels["animal"].tolist() == [1, 0]
    assert found.specs["animal"].classes == ("dog", "cat")
    assert found.fixed == {"animal"}


def test_folder_names_can_be_numbers(tmp_path: Path) -> None:
    put(tmp_path, "0.5/a.jpg", "-1.5/a.jpg")
    found = scanned(Folder(tmp_path), angle=Label("float"))
    assert found.labels["angle"].tolist() == [-1.5, 0.5]
    assert found.labels["angle"].dtype == "float32"


def test_a_missing_folder_names_the_nearest_that_exists(tmp_path: Path) -> None:
    said = refusal(Folder(tmp_path / "data" / "trian"))
    assert said.startswith(f"streams.train.source.path: there is no '{tmp_path}/data/trian'")
    assert f"nearest folder that exists is '{tmp_path}'" in said


def test_a_file_in_place_of_a_folder_points_to_tables(tmp_path: Path) -> None:
    put(tmp_path, "list.csv")
    says = "is a file, but kind folder needs a folder; for a table that lists files, use kind table"
    assert_refused(Folder(tmp_path / "list.csv"), says)


def test_a_folder_that_may_not_be_read_names_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "cat/a.jpg")
    real = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"/cat"):
            raise PermissionError(13, "Permission denied", os.fsdecode(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr("streamd.dataset.paths.confined.os.geteuid", lambda: 4_000_000)
    assert_refused(Folder(tmp_path), "user 4000000 is not allowed to read '.*/cat'")


def test_links_within_the_root_are_followed_and_listed_by_their_targets(tmp_path: Path) -> None:
    put(tmp_path, "cat/b.jpg", "cat/pool/c.jpg")
    (tmp_path / "cat" / "a.jpg").symlink_to(tmp_path / "cat" / "b.jpg")
    (tmp_path / "dog").symlink_to("cat/pool")
    found = scanned(Folder(tmp_path))
    assert found.files == [b"cat/b.jpg", b"cat/b.jpg", b"cat/pool/c.jpg", b"cat/pool/c.jpg"]
    assert found.labels["label"].tolist() == [0, 0, 0, 1]
    assert found.sizes.tolist() == [9, 9, 14, 14]


@pytest.mark.parametrize(
    ("link", "target", "says"),
    [
        ("cat/out.jpg", "{}/secret/b.jpg", "the link '.*/data/cat/out.jpg' points to '.*/secret/b.jpg', outside "),
        ("dog", "{}/secret", "the link '.*/data/dog' points to '.*/secret', outside "),
        ("cat/b.jpg", "../../data2/b.jpg", ", outside "),  # to a root that begins alike
        ("cat/b.jpg", "{}/gone.jpg", r"points to '.*/gone.jpg', outside .*; there is no such file; remove or fix the"),
        ("cat/again", "..", "points back to"),
        ("cat/b.jpg", "gone.jpg", r"the link '.*b\.jpg' points to a file that does not exist"),
    ],
)
def test_a_link_out_of_the_root_in_a_circle_or_to_nowhere_is_refused(
    tmp_path: Path, link: str, target: str, says: str
) -> None:
    put(tmp_path, "data/cat/a.jpg", "secret/b.jpg", "data2/b.jpg")
    (tmp_path / "data" / link).symlink_to(target.format(tmp_path))
    assert_refused(Folder(tmp_path / "data"), says)


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    put(tmp_path, "real/cat/a.jpg")
    (tmp_path / "data").symlink_to("real")
    found = scanned(Folder(tmp_path / "data"))
    assert (found.root, found.files) == (tmp_path / "data", [b"cat/a.jpg"])


def test_a_fifo_posing_as_an_image_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "cat/a.jpg")
    os.mkfifo(tmp_path / "cat" / "b.jpg")
    assert_refused(Folder(tmp_path), "is not a regular file")


def test_names_that_are_not_utf_8_are_allowed_for_files_and_not_for_classes(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    odd = os.fsencode(tmp_path) + b"/cat/\xff.jpg"
    Path(os.fsdecode(odd)).touch()
    assert scanned(Folder(tmp_path)).files == [b"cat/\xff.jpg"]
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe")).mkdir()
    assert_refused(Folder(tmp_path), r"'\\\\xfe' is not UTF-8")


WhenListed = Callable[[Callable[[], object]], None]


@pytest.fixture
def when_listed(monkeypatch: pytest.MonkeyPatch) -> WhenListed:
    """Has something done as soon as the first folder is listed."""

    def arrange(do: Callable[[], object]) -> None:
        entries, left = folder.FolderWalk.list_folder, [do]

        def listed(walk: folder.FolderWalk, name: bytes) -> tuple[list[bytes], list[bytes]]:
            found = entries(walk, name)
            if left:
                left.pop()()
            return found

        monkeypatch.setattr(folder.FolderWalk, "list_folder", listed)

    return arrange


def test_a_file_that_is_removed_during_the_scan_is_skipped_and_logged(
    tmp_path: Path, when_listed: WhenListed, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    when_listed((tmp_path / "b.jpg").unlink)
    assert scanned(Folder(tmp_path)).files == [b"a.jpg", b"c.jpg"]
    assert "1 file or folder was removed while the folder was listed, and left out: 'b.jpg'" in caplog.text


def test_a_class_that_is_removed_during_the_scan_is_left_out(tmp_path: Path, when_listed: WhenListed) -> None:
    put(tmp_path, "cat/a.jpg", "cow/b.jpg", "dog/c.jpg")
    when_listed(lambda: shutil.rmtree(tmp_path / "cow"))
    found = scanned(Folder(tmp_path))
    assert found.files == [b"cat/a.jpg", b"dog/c.jpg"]
    assert found.specs["label"].classes == ("cat", "dog")
    assert found.labels["label"].tolist() == [0, 1]


def test_a_folder_that_is_replaced_during_the_scan_is_refused(tmp_path: Path, when_listed: WhenListed) -> None:
    root = tmp_path / "data"
    put(root, "a.jpg", "b.jpg")

    def unmount() -> None:
        root.rename(tmp_path / "elsewhere")
        put(root, "a.jpg")

    when_listed(unmount)
    assert_refused(Folder(root), "another folder took the place of '.*data' while it was listed")
