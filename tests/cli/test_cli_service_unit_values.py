"""Paths as units of systemd spell them; what systemd itself makes of them is seen in tests/units."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.cli.service import escape_unit_path, format_start_command, list_mount_units, quote_path
from streamd.errors import ConfigError


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("/opt/streamd/bin/streamd", "/opt/streamd/bin/streamd"),
        ("/opt/it's 100% mine/bin/streamd", '"/opt/it\'s 100%% mine/bin/streamd"'),
        ('/opt/"so\\called"', '"/opt/\\"so\\\\called\\""'),
        ("/opt/größer", '"/opt/größer"'),
        ("/opt/a:b", '"/opt/a:b"'),
    ],
)
def test_a_path_is_one_word_whatever_is_in_it(path: str, spelled: str) -> None:
    assert quote_path(Path(path)) == spelled


def test_a_command_whose_name_systemd_would_not_start_is_started_by_a_shell() -> None:
    assert format_start_command("/opt/my env/streamd") == '"/opt/my env/streamd"'
    assert format_start_command("/opt/it's $mine/streamd") == (
        """/bin/sh -c 'exec "$$0" "$$@"' "/opt/it's $$mine/streamd\""""
    )


@pytest.mark.parametrize("path", ["/opt/a\nb", "/opt/\udcff"])
def test_a_path_that_no_unit_can_hold_is_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigError, match=r"a unit of systemd cannot name '/opt/.*': install streamd at a path of"):
        quote_path(path)


@pytest.mark.parametrize(
    ("path", "escaped"),
    [
        ("/mnt/data", "mnt-data"),
        ("/mnt/my-data 2", r"mnt-my\x2ddata\x202"),
        ("/.hidden/.too", r"\x2ehidden-.too"),
        ("/größe/50%", r"gr\xc3\xb6\xc3\x9fe-50\x25"),
    ],
)
def test_a_mount_has_the_name_that_systemd_gives_it(path: str, escaped: str) -> None:
    assert escape_unit_path(Path(path)) == escaped


def test_data_may_lie_on_each_mount_above_them_and_each_is_named_once() -> None:
    assert list_mount_units([Path("/mnt/a/b"), Path("/mnt/a")]) == ["mnt.mount", "mnt-a.mount", "mnt-a-b.mount"]


def test_a_folder_whose_mount_systemd_could_not_name_is_left_out() -> None:
    assert list_mount_units([Path("/mnt") / ("x" * 250)]) == ["mnt.mount"]
