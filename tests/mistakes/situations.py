"""Makes a mistake as its user would, and says how the command ended."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import msgspec
import pytest
from mistake import Mistake
from support.daemon_process import DaemonProcess, stream_config, write_images
from support.transform_programs import forgotten

import streamd
from streamd.config.load import ConfigInput
from streamd.core import log
from streamd.daemon.streams import listing_process
from streamd.errors import ConfigError, StreamdError

LIMIT_S = 30.0
PROGRAMS = {"streamd": "streamd.cli.main", "streamd-train": "streamd.cli.train.command"}
_ROWS = "".join(f"{name}/000{number}.jpg,0.{number}\n" for name in ("cat", "dog") for number in range(4))

_HIDE = """\
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_others(name, *place):
    return None if name.partition(".")[0] == {!r} else find(name, *place)
PathFinder.find_spec = staticmethod(find_others)
"""


class Ended(NamedTuple):
    status: int
    lines: list[str]  # on stderr, without what the log says in passing


def arrange(mistake: Mistake, place: Path, endpoint: str | None) -> object:
    """The folder that the mistake is made in. What it returns is to be kept until then."""
    write_images(place / "data", {"cat": 4, "dog": 4})
    (place / "all.csv").write_text("path,angle\n" + _ROWS)
    (place / "config.yaml").write_text(mistake.config.replace("ENDPOINT", endpoint or ""))
    for name, content in mistake.files.items():
        path = place / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    if mistake.without:
        # Which every interpreter imports first, the daemon's children too.
        hide = place / "without" / "sitecustomize.py"
        hide.parent.mkdir()
        hide.write_text(_HIDE.format(mistake.without))
    return mistake.prepare(place) if mistake.prepare else None


@contextlib.contextmanager
def served(place: Path) -> Iterator[DaemonProcess]:
    """A daemon with a stream for everything that may go wrong later: what it names was right when it started."""
    good, gone = (write_images(place / name, {"cat": count, "dog": 8}) for name, count in (("good", 8), ("gone", 32)))
    flat = write_images(place / "flat", {"all": 8}) / "all"
    broken = place / "broken" / "cat"
    broken.mkdir(parents=True)
    for number in range(16):
        (broken / f"{number:02}.jpg").write_text("<!DOCTYPE html><title>404</title>")
    table = place / "drive.csv"
    table.write_text("path,angle,throttle\n" + "".join(f"{name},0.1,0.2\n" for name in _ROWS.split(",0.")[0:1]))
    drive = {"kind": "table", "path": str(table), "image": "path", "root": str(good)}
    streams = {
        "train": stream_config(good),
        "validation": stream_config(good, shuffle="none"),
        "drive": stream_config(good, source=drive, labels={"angle": "float", "throttle": "float"}),
        "flat": stream_config(flat),
        "large": stream_config(good, image={"size": [1024, 1024]}, batch_size=16),
        "broken": stream_config(broken.parent),
        "gone": stream_config(gone),
    }
    with DaemonProcess(place, {"streams": streams}) as daemon:
        for path in [*gone.glob("dog/*"), *sorted(gone.glob("cat/*"))[:4]]:
            path.unlink()
        yield daemon


def environment(mistake: Mistake, place: Path, endpoint: str | None) -> dict[str, str]:
    """Where state and sockets go, which daemon is found, and which libraries are not."""
    return {
        "STATE_DIRECTORY": str(place / "state"),
        "XDG_RUNTIME_DIR": str(place),
        "RUNTIME_DIRECTORY": str(place),
        "STREAMD_ENDPOINT": endpoint or "",
        "COLUMNS": "200",
        "PYTHONPATH": str(place / "without") if mistake.without else os.environ.get("PYTHONPATH", ""),
    }


def run_apart(mistake: Mistake, place: Path, endpoint: str | None) -> Ended:
    """In a process of its own, as users start it: for what is decided before or below Python."""
    program, *arguments = shlex.split(mistake.command)
    done = subprocess.run(
        [sys.executable, "-m", PROGRAMS[program], *arguments],
        cwd=place,
        env=os.environ | environment(mistake, place, endpoint),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        preexec_fn=_drop_privileges if mistake.unprivileged else None,
    )
    return Ended(done.returncode, _told(done.stderr))


def run_here(
    mistake: Mistake,
    place: Path,
    endpoint: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Ended:
    """Through the function that the installed command calls, without the seconds that interpreters take to start."""
    program, *arguments = shlex.split(mistake.command)
    monkeypatch.chdir(place)
    for name, value in environment(mistake, place, endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", [program, *arguments])
    monkeypatch.setattr("streamd.daemon.daemon.list_samples_in_process", _list_here)
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))  # nobody here gets so far as to need it
    with forgotten(place), pytest.raises(SystemExit) as ended:
        _main(program)()
    written = capfd.readouterr()
    told = _troubles(written.out) if mistake.printed else _told(written.err)
    return Ended(int(ended.value.code or 0), told)


def run_code(mistake: Mistake, endpoint: str) -> Ended:
    """Python on a client; the error stands for what is said."""
    with streamd.connect(endpoint) as client, pytest.raises(StreamdError) as caught:
        eval(mistake.command, {"client": client})  # noqa: S307 - the code is ours, and shown on the page
    return Ended(caught.value.exit_status, [f"{caught.type.__name__}: {caught.value}"])


async def _list_here(config: ConfigInput, state: Path, *, list_again: bool = False) -> None:
    """Lists as the listing's process does, without the half second that it takes to start."""
    asked, said = io.TextIOWrapper(io.BytesIO(msgspec.json.encode(config, enc_hook=os.fspath))), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr("sys.argv", ["listing", str(state), str(log.current_level()), "all" if list_again else "new"])
        patch.setattr("sys.stdin", asked)
        patch.setattr(listing_process, "die_with_parent", lambda _parent: None)  # it would be that of the tests
        try:
            listing_process.main()
        except SystemExit as ended:
            raise ConfigError(said.getvalue()) from ended


def _main(program: str) -> Callable[[], None]:
    from streamd.cli import main  # noqa: PLC0415 - they end the process when typer is missing
    from streamd.cli.train import command  # noqa: PLC0415 - they end the process when typer is missing

    return {"streamd": main.main, "streamd-train": command.main}[program]


def _told(stderr: str) -> list[str]:
    assert "Traceback" not in stderr, stderr
    return [line for line in stderr.splitlines() if line.strip() and not re.match(r"\d\d:\d\d:\d\d I ", line)]


def _troubles(report: str) -> list[str]:
    _, _, rest = report.partition("\nTrouble:\n")
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()]


_BOUNDING_SET_DROP = 24  # of prctl
_OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: what lets root pass permissions by


def _drop_privileges() -> None:
    if os.geteuid() == 0:
        for capability in _OVERRIDES:
            assert ctypes.CDLL(None).prctl(_BOUNDING_SET_DROP, capability, 0, 0, 0) == 0
