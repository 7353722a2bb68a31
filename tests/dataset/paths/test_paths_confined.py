"""Sizes of files are read by name; no name leads out of the root."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from support.source_configs import put

from streamd.dataset.paths.confined import (
    PROGRESS_FILES,
    ConfinedRoot,
    format_first_names,
    format_path,
    join_name,
    stat_files,
    translate_read_errors,
)
from streamd.errors import ConfigError


def test_sizes_and_mtimes_are_read_and_missing_files_listed_in_order(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b/c.jpg")
    names = [b"a.jpg", b"gone.jpg", b"b/c.jpg", b"a.jpg/under", b"no/where.jpg"]
    sizes, mtimes_ns, missing = stat_files(ConfinedRoot(os.fsencode(tmp_path), "x"), names, lambda _: None)
    assert sizes.tolist() == [5, 0, 7, 0, 0]
    assert mtimes_ns[2] == (tmp_path / "b/c.jpg").stat().st_mtime_ns
    assert missing == [1, 3, 4]


def test_progress_is_reported_in_growing_numbers(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg")
    seen: list[int] = []
    stat_files(ConfinedRoot(os.fsencode(tmp_path), "x"), [b"a.jpg"] * (2 * PROGRESS_FILES + 1), seen.append)
    assert seen == [PROGRESS_FILES, 2 * PROGRESS_FILES, 2 * PROGRESS_FILES + 1]


@pytest.mark.parametrize(("quick_s", "threads"), [(10.0, {"main"}), (0.0, {"main", "pool"})])
def test_only_a_slow_disk_is_read_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_s: float, threads: set[str]
) -> None:
    asked: set[str] = set()

    def stat(_: ConfinedRoot, name: bytes) -> tuple[bytes, os.stat_result]:
        asked.add("pool" if threading.current_thread().name.startswith("streamd-stat") else "main")
        return name, tmp_path.stat()

    monkeypatch.setattr(ConfinedRoot, "stat_file", stat)
    monkeypatch.setattr("streamd.dataset.paths.confined._QUICK_STAT_S", quick_s)
    _, mtimes_ns, _ = stat_files(
        ConfinedRoot(os.fsencode(tmp_path), "x"), [b"a"] * (2 * PROGRESS_FILES), lambda _: None
    )
    assert asked == threads
    assert mtimes_ns.all()


def test_an_error_of_lstat_is_reported_under_the_configuration_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: bytes) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(ConfigError, match=r"x: cannot read '.*/a': Input/output error"):
        ConfinedRoot(os.fsencode(tmp_path), "x").stat_file(b"a")


def test_a_name_too_long_for_any_file_is_a_missing_file(tmp_path: Path) -> None:
    assert ConfinedRoot(os.fsencode(tmp_path), "x").stat_file(b"a" * 300) is None


def test_a_very_long_name_is_shown_by_its_end() -> None:
    assert len(format_path("a" * 5000 + "b.jpg")) < 320
    assert format_path("a" * 5000 + "b.jpg").endswith("ab.jpg'")


def test_names_that_are_links_are_replaced_by_their_targets(tmp_path: Path) -> None:
    put(tmp_path, "pool/a.jpg")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to(tmp_path / "pool")
    names = [b"one/a.jpg", b"pool/a.jpg", b"one/none.jpg"]
    _, _, missing = stat_files(ConfinedRoot(os.fsencode(tmp_path), "x"), names, lambda _: None)
    assert names == [b"pool/a.jpg", b"pool/a.jpg", b"one/none.jpg"]
    assert missing == [2]


def test_the_root_of_the_file_system_is_a_root_like_any_other(tmp_path: Path) -> None:
    fence = ConfinedRoot(b"/", "x")
    assert (fence.join_path(b""), fence.join_path(b"a")) == (b"/", b"/a")
    inside = os.fsencode(tmp_path.resolve())[1:]
    assert fence.resolve_name(inside) == inside
    assert fence.resolve_name(b"") == b""


@pytest.mark.parametrize("code", [errno.EIO, errno.ELOOP, errno.ENAMETOOLONG])
def test_other_errors_of_the_system_are_reported_in_its_words(code: int) -> None:
    with (
        pytest.raises(ConfigError, match=rf"x: cannot read '/a': {os.strerror(code)}"),
        translate_read_errors("/a", "x"),
    ):
        raise OSError(code, os.strerror(code), "/a")


def test_a_user_without_a_right_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError, match="user root is not allowed to read '/a'"), translate_read_errors("/a", "x"):
        raise PermissionError(errno.EACCES, "no")


def test_paths_are_shown_quoted_and_with_odd_bytes_escaped() -> None:
    assert format_path(b"a b") == "'a b'"
    assert "xff" in format_path(b"\xff")
    assert format_first_names([b"a", b"b", b"c", b"d"]) == "'a', 'b', 'c'"


def test_joining_to_the_root_adds_no_slash() -> None:
    assert (join_name(b"", b"a"), join_name(b"b", b"a")) == (b"a", b"b/a")


def test_a_path_is_shown_without_dots_unless_a_link_changes_its_meaning(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "b" / "deep")
    assert format_path(f"{tmp_path}/a/../c/x") == repr(f"{tmp_path}/c/x")
    assert format_path(f"{tmp_path}/a/link/../x") == repr(f"{tmp_path}/a/link/../x")
    assert format_path(b"/a/../\0") == repr("/a/../\0")
    assert format_path("../x") == "'../x'"
