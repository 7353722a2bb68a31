"""What commands end with, as the page has it. Without a daemon, and those not named here: where they are tested."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, stream_config, write_images

from streamd.cli.main import main

Run = Callable[[str], int]
PACK = "--format npy --config CONFIG"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    streams = {"train": stream_config(write_images(place / "data", {"cat": 8, "dog": 8}))}
    with DaemonProcess(place, {"streams": streams}) as daemon:
        yield daemon


@pytest.fixture
def run(daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder, which finds the daemon; the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMD_ENDPOINT", daemon.endpoint)

    def run(command: str) -> int:
        monkeypatch.setattr("sys.argv", shlex.split(command.replace("CONFIG", str(daemon.config))))
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "top",
        "show train 0:0",
        "probe train",
        "schema",
        "pack train p --format npy --config CONFIG",
    ],
)
def test_what_was_asked_for_and_done_ends_with_0(run: Run, command: str) -> None:
    assert run(f"streamd {command}") == 0


def test_a_picture_that_cannot_be_written_is_1(run: Run) -> None:
    assert run("streamd show train 0:0 -o nowhere/x.png") == 1


@pytest.mark.parametrize("command", ["status", "schema"])
def test_what_cannot_be_printed_is_1(run: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails too
        monkeypatch.setattr("sys.stdout", full)
        assert run(f"streamd {command}") == 1


@pytest.mark.parametrize(
    "command",
    [
        "status --endpoint nonsense", "status --url", "top --endpoint nonsense", "show tran 0:0", "show train 0:99",
        "show train 0", "probe tran", "probe train --load nonsense", "completion bash", f"pack tran p {PACK}",
        f"pack train . {PACK}",
    ],
)  # fmt: skip
def test_a_mistake_in_what_is_asked_is_2(run: Run, command: str) -> None:
    assert run(f"streamd {command}") == 2
