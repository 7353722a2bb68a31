"""streamd as users install it: built from a clean copy of the checkout, in environments of its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import pytest

from support.daemon_process import stream_config, wait_until, write_images

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements" / "test.txt"
SCHEMA: Final = "streamd/config/config.schema.json"  # not in the repository: each build makes it
LIMIT_S: Final = 120.0


def clean_copy(to: Path) -> Path:
    """What git would hand out of this checkout: nothing that it ignores, links as they are."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def build(what: str, source: Path, to: Path) -> Path:
    """Has the backend build an `sdist`, `wheel` or `editable` of a folder, as pip and build do, and nothing fetched."""
    code = f"import sys, setuptools.build_meta as backend; backend.build_{what}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(to)], cwd=source, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = to.glob("*.tar.gz" if what == "sdist" else "*.whl")
    return built


@dataclass(frozen=True)
class Built:
    """What is handed out, and the files that it was made of, which an editable install uses as they are."""

    source: Path
    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """sdist, wheel and editable install of one copy of the checkout, and the wheel of the sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = clean_copy(folder / "source")
    wheel = build("wheel", source, folder / "one")
    # Each has to make the schema itself, so what the one before has left goes.
    (source / SCHEMA).unlink()
    sdist = build("sdist", source, folder / "sdist")
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel_of_sdist = build("wheel", unpacked, folder / "other")
    (source / SCHEMA).unlink()
    build("editable", source, folder / "links")
    return Built(source, sdist, wheel, wheel_of_sdist)


class Environment:
    """A virtual environment that has what was installed into it, and nothing else, and an empty folder to be in."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self.folder = folder / "environment"
        self.empty = folder / "empty"
        self.empty.mkdir()
        self._variables = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.empty), "LANG": "C.UTF-8"}
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.folder)], check=True)
        versions = folder / "versions.txt"
        versions.write_text(
            "\n".join(re.findall(r"^[a-z0-9.-]+==\S+(?: ;.*?)?(?= \\$)", LOCK.read_text(), re.MULTILINE))
        )
        self._pip("install", "--quiet", "--no-compile", "--constraint", str(versions), requirement)

    def _pip(self, *arguments: str) -> str:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.folder / "bin/python")]
        return subprocess.run([*pip, *arguments], capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout

    def see(self, libraries: Path) -> None:
        """Has it find libraries of another environment after its own, except for what is linked to a checkout there."""
        (own,) = self.folder.glob("lib/python*/site-packages")
        (own / "beside.pth").write_text(f"{libraries}\n")

    @cached_property
    def packages(self) -> set[str]:
        """The names of what is installed."""
        return {each["name"].lower() for each in json.loads(self._pip("list", "--format=json"))}

    def popen(self, *command: str, **options: object) -> subprocess.Popen[str]:
        """Starts one of its commands."""
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]  # options pass through
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.empty, env=self._variables, text=True, **options,
        )  # fmt: skip

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """One of its commands, to its end."""
        with self.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            said, complained = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(command, process.returncode, said, complained)


@pytest.fixture(scope="session")
def environment_of(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """A fresh environment with the wheel and some of its extras, made once for each choice of them."""
    made: dict[str, Environment] = {}

    def make(extras: str) -> Environment:
        if extras not in made:
            requirement = f"streamd-loader{extras} @ {built.wheel.as_uri()}"
            made[extras] = Environment(tmp_path_factory.mktemp("environment"), requirement)
        return made[extras]

    return make


@pytest.fixture
def of_a_trainer(environment_of: Callable[[str], Environment]) -> Environment:
    """`pip install streamd-loader`."""
    return environment_of("")


@pytest.fixture
def of_a_daemon(environment_of: Callable[[str], Environment]) -> Environment:
    """`pip install 'streamd-loader[serve]'`."""
    return environment_of("[serve]")


@pytest.fixture
def of_training(built: Built, tmp_path: Path) -> Environment:
    """The wheel beside the libraries of this environment: TensorFlow is too large to be installed for a test."""
    environment = Environment(tmp_path, f"streamd-loader @ {built.wheel.as_uri()}")
    environment.see(Path(sysconfig.get_path("purelib")))
    return environment


@dataclass(frozen=True)
class Serving:
    """A daemon that runs from an installed wheel."""

    endpoint: str
    url: str
    samples: int


@contextmanager
def serving(environment: Environment, folder: Path) -> Iterator[Serving]:
    """`streamd serve` on 24 pictures, until SIGTERM, which ends it well."""
    write_images(folder / "pictures", {"cat": 12, "dog": 12})
    endpoint, config, log = f"ipc://{folder}/s", folder / "config.yaml", folder / "log"
    streams = {"train": stream_config(folder / "pictures")}
    settings = {"listen": [endpoint], "monitor": "127.0.0.1:0", "workers": 1, "memory": "64MiB", "streams": streams}
    config.write_text(json.dumps(settings))
    with log.open("w") as said, environment.popen("streamd", "serve", "--config", str(config), stderr=said) as daemon:
        try:
            wait_until(lambda: "daemon.ready" in log.read_text() or daemon.poll() is not None, "it serves")
            found = re.search(r"monitor\.ready\W.*?(http://[^\s/;]+)", log.read_text())
            assert found is not None, log.read_text()
            yield Serving(endpoint, found[1], 24)
        finally:
            daemon.terminate()
    assert daemon.returncode == 0, log.read_text()
