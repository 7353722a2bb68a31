"""What a host gives a process: its places, regular files alone, and what the levels of its cgroups allow."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamd.core import host
from streamd.core.host import (
    count_processors,
    find_state_folder,
    hold_temporary_folder,
    list_runtime_folders,
    measure_memory,
    open_regular_descriptor,
    open_regular_file,
    read_regular_file,
)
from streamd.errors import ConfigError

LIMIT_S = 10
MACHINE_BYTES = 8 << 30
GIB = 1 << 30

# --- places


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets those that name places, and no others."""

    def set_variables(**given: str) -> None:
        for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/var/lib/a"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/streamd"),
        ({"HOME": "/h"}, "/h/.local/state/streamd"),
        ({"STATE_DIRECTORY": "", "XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/streamd"),
    ],
)
def test_state_lies_where_the_first_variable_says(
    environment: dict[str, str], place: str, variables: Callable[..., None]
) -> None:
    variables(**environment)
    assert find_state_folder() == Path(place)


def test_a_user_without_a_home_is_told_which_variable_names_a_place(
    variables: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables()
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a uid without a line in passwd
    with pytest.raises(ConfigError, match=r"user \d+ has no home folder.*set STATE_DIRECTORY"):
        find_state_folder()


def test_sockets_lie_in_the_services_folder_before_the_users(variables: Callable[..., None]) -> None:
    variables(XDG_RUNTIME_DIR="/run/user/7", RUNTIME_DIRECTORY="/run/a:/run/b")
    assert list(list_runtime_folders().values()) == [Path("/run/a"), Path("/run/user/7")]
    variables(XDG_RUNTIME_DIR="")
    assert list_runtime_folders() == {}


def test_a_temporary_folder_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with hold_temporary_folder("x-") as folder:
        (folder / "file").touch()
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_without_a_temporary_folder_the_error_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"no temporary folder can be made: No such file.*; set TMPDIR"):
        host.make_temporary_folder("x-")


# --- files


@pytest.fixture
def alarm() -> Iterator[None]:
    """Ends a test that waits for the other end of a FIFO."""
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_fifo(path: Path) -> None:
    make_fifo(path.with_name("f"))
    path.symlink_to("f")


def make_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            bound.bind(path.name)
        finally:
            os.chdir(before)


ODD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (make_fifo, "it is a FIFO, and not a regular file"),
    "link to a FIFO": (link_to_fifo, "it is a FIFO"),
    "socket": (make_socket, "it is a socket"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "terminal": (lambda path: path.symlink_to("/dev/tty"), "it is a device"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "No such file"),
    "loop of links": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "huge sparse file": (make_huge_file, "more than .* bytes"),
}


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", ODD_FILES)
def test_what_is_no_regular_file_is_refused_at_once_and_named(tmp_path: Path, kind: str) -> None:
    make, says = ODD_FILES[kind]
    make(tmp_path / "x")
    with pytest.raises(OSError, match=says) as caught:
        read_regular_file(tmp_path / "x")
    assert caught.value.strerror
    if kind != "huge sparse file":
        with pytest.raises(OSError, match=says):
            open_regular_file(tmp_path / "x")


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular_file(tmp_path / "x", 5) == read_regular_file(tmp_path / "x") == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_regular_file(os.fsencode(tmp_path / "x"), 4)


@pytest.mark.usefixtures("alarm")
def test_a_pipe_that_was_handed_over_is_read_to_its_end_or_bound() -> None:
    for most, written in ((100, b"x" * 50), (100, b"x" * 101)):
        reading, writing = os.pipe()
        os.write(writing, written)
        os.close(writing)
        if len(written) <= most:
            assert read_regular_file(f"/dev/fd/{reading}", most) == written
        else:
            with pytest.raises(OSError, match="more than 100 bytes"):
                read_regular_file(f"/proc/self/fd/{reading}", most)
        os.close(reading)


def test_a_file_that_is_missing_may_be_made(tmp_path: Path) -> None:
    os.close(open_regular_descriptor(tmp_path / "new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


# --- processors and memory

VERSION_2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
VERSION_1_CPU = "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
VERSION_1_MEMORY = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
CPU_1, MEMORY_1 = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/memory"


def build_host(place: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A tree of the files that the kernel would show a process."""
    files = {
        "proc/meminfo": f"MemFree:  1 kB\nMemTotal:  {MACHINE_BYTES // 1024} kB\n",
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": "\n".join(["22 1 0:21 / / rw - ext4 /dev/x rw", *mounts]) + "\n",
        **files,
    }
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


TREES: dict[str, tuple[str, list[str], dict[str, str], int, int]] = {
    "no cgroups": ("", [], {}, 16, MACHINE_BYTES),
    "no limits": (
        "0::/a\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/a/cpu.max": "max 100000\n", "sys/fs/cgroup/a/memory.max": "max\n"},
        16,
        MACHINE_BYTES,
    ),
    "the own group": (
        "0::/a/b\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/a/b/cpu.max": "300000 100000\n", "sys/fs/cgroup/a/b/memory.max": f"{GIB}\n"},
        3,
        GIB,
    ),
    "the smallest of all levels": (
        "0::/a/b/c\n",
        [VERSION_2.format(root="/")],
        {
            "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/a/b/memory.max": f"{3 * GIB}\n",
        },
        2,
        2 * GIB,
    ),
    "a neighbour's group": (
        "0::/a\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/b/cpu.max": "100000 100000\n", "sys/fs/cgroup/a/c/cpu.max": "100000 100000\n"},
        16,
        MACHINE_BYTES,
    ),
    "one and a half": (
        "0::/\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/cpu.max": "150000 100000\n"},
        1,
        MACHINE_BYTES,
    ),
    "two and nine tenths": (
        "0::/\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/cpu.max": "29000 10000"},
        2,
        MACHINE_BYTES,
    ),
    "a half": (
        "0::/\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/cpu.max": "50000 100000\n"},
        1,
        MACHINE_BYTES,
    ),
    "more than there is": (
        "0::/a\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/a/cpu.max": "6400000 100000\n", "sys/fs/cgroup/a/memory.max": f"{1 << 50}\n"},
        16,
        MACHINE_BYTES,
    ),
    "a container that sees its host's path": (
        "0::/kube/pod/x\n",
        [VERSION_2.format(root="/kube/pod/x")],
        {"sys/fs/cgroup/cpu.max": "400000 100000\n", "sys/fs/cgroup/memory.max": f"{GIB}\n"},
        4,
        GIB,
    ),
    "a group outside of what is mounted": (
        "0::/../other\n",
        [VERSION_2.format(root="/")],
        {"sys/fs/cgroup/cpu.max": "500000 100000\n"},
        5,
        MACHINE_BYTES,
    ),
    "version 1": (
        "5:cpu,cpuacct:/a/b\n4:memory:/m\n0::/\n",
        [VERSION_1_CPU.format(root="/"), VERSION_1_MEMORY.format(root="/")],
        {
            f"{CPU_1}/cpu.cfs_quota_us": "-1\n",
            f"{CPU_1}/cpu.cfs_period_us": "100000\n",
            f"{CPU_1}/a/cpu.cfs_quota_us": "250000\n",
            f"{CPU_1}/a/cpu.cfs_period_us": "100000\n",
            f"{CPU_1}/a/b/cpu.cfs_quota_us": "-1\n",
            f"{CPU_1}/a/b/cpu.cfs_period_us": "100000\n",
            f"{MEMORY_1}/m/memory.limit_in_bytes": f"{GIB}\n",
            f"{MEMORY_1}/memory.limit_in_bytes": "9223372036854771712\n",
        },
        2,
        GIB,
    ),
    "version 1 in a container": (
        "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n",
        [VERSION_1_CPU.format(root="/docker/x"), VERSION_1_MEMORY.format(root="/docker/x")],
        {
            f"{CPU_1}/cpu.cfs_quota_us": "100000\n",
            f"{CPU_1}/cpu.cfs_period_us": "50000\n",
            f"{MEMORY_1}/memory.limit_in_bytes": f"{GIB}\n",
        },
        2,
        GIB,
    ),
    "both versions, the limits in the second": (
        "5:memory:/m\n0::/u\n",
        [VERSION_1_MEMORY.format(root="/"), VERSION_2.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/unified")],
        {"sys/fs/unified/u/cpu.max": "700000 100000\n"},
        7,
        MACHINE_BYTES,
    ),
    "a mount with a blank in its path": (
        "0::/a b\n",
        [VERSION_2.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/c\\040g")],
        {"sys/fs/c g/a b/cpu.max": "200000 100000\n"},
        2,
        MACHINE_BYTES,
    ),
    "nonsense": (
        "0::/\nnonsense\n",
        ["nonsense", VERSION_2.format(root="/")],
        {"sys/fs/cgroup/cpu.max": "many 0\n", "sys/fs/cgroup/memory.max": "-\n"},
        16,
        MACHINE_BYTES,
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_processors_and_memory_are_what_every_level_allows(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, mounts, files, processors, memory_bytes = TREES[name]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(16)))
    root = build_host(tmp_path, groups, mounts, files)
    assert count_processors(root) == processors
    found = measure_memory(root)
    assert found.limit_bytes == memory_bytes
    assert found.source.startswith("this machine" if memory_bytes == MACHINE_BYTES else "the cgroup of this process")


def test_an_affinity_below_the_quota_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    root = build_host(tmp_path, "0::/\n", [VERSION_2.format(root="/")], {"sys/fs/cgroup/cpu.max": "400000 100000"})
    assert count_processors(root) == 1
