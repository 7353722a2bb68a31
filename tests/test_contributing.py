"""The code in CONTRIBUTING.md works as it stands there: put into a copy of the package, it serves real archives."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.daemon_process import write_images

ROOT: Final = Path(__file__).resolve().parent.parent
LIMIT_S: Final = 120.0
BLOCK: Final = re.compile(
    r"^`(?P<path>streamd/[^`]+)`:\n\n```(?P<kind>python|diff)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
CHECK: Final = "from streamd.cli.main import main; main()"


def blocks() -> Iterator[tuple[Path, str, str]]:
    """The path of each file in the example, `python` or `diff`, and the block's text."""
    for found in BLOCK.finditer((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        yield Path(found["path"]), found["kind"], found["text"]


def add_lines(text: str, diff: str) -> str:
    """A file with the added lines of a block, each after the line above it, of which the file has one."""
    above = ""
    for line in diff.splitlines(keepends=True):
        if line.startswith("+"):
            assert text.count(above) == 1, above
            text = text.replace(above, above + line[1:])
        above = line[1:]
    return text


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package in it, and the example in the package."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "streamd", root / "streamd", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for path, kind, text in blocks():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text if kind == "python" else add_lines((root / path).read_text(), text))
    return root


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env=environment, cwd=copy, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def told(copy: Path, config: Path, state: Path) -> Any:
    done = run(copy, str(ROOT / "tests" / "support" / "read_through_copy.py"), str(config), str(state))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["package"]).is_relative_to(copy)
    return found


def packed(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A configuration over two archives, one of them deflated; these; and the folder that they were made of."""
    folder = write_images(tmp_path / "pets", {"cat": 3, "dog": 2})
    archives = tmp_path / "archives"
    archives.mkdir()
    methods = {"cat": zipfile.ZIP_STORED, "dog": zipfile.ZIP_DEFLATED}
    for name, method in methods.items():
        with zipfile.ZipFile(archives / f"{name}.zip", "w", method) as archive:
            archive.mkdir(name)
            archive.writestr("readme.txt", "no image")
            for image in sorted((folder / name).iterdir(), reverse=True):
                archive.write(image, f"{name}/{image.name}")
    config = tmp_path / "config.yaml"
    config.write_text(
        "streams:\n  train:\n    source: {kind: zip, path: archives}\n    image: {size: [8, 8]}\n    batch_size: 2\n"
    )
    return config, archives, folder


def test_the_example_names_every_file_that_it_is_made_of() -> None:
    assert [(str(path), kind) for path, kind, _ in blocks()] == [
        ("streamd/dataset/zip/__init__.py", "python"),
        ("streamd/dataset/zip/scan.py", "python"),
        ("streamd/dataset/formats.py", "diff"),
        ("streamd/dataset/zip/read.py", "python"),
        ("streamd/dataset/open_store.py", "diff"),
    ]


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=lambda each: each[0])
def test_the_example_is_written_as_the_house_writes(copy: Path, command: tuple[str, ...]) -> None:
    done = run(copy, "-m", "ruff", *command, "streamd/dataset/zip")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_samples_of_archives_have_the_bytes_that_were_packed_and_the_classes_of_their_folders(
    copy: Path, tmp_path: Path
) -> None:
    config, _, folder = packed(tmp_path)
    found = told(copy, config, tmp_path / "state")
    images = sorted(folder.rglob("*.jpg"))
    assert found["classes"] == ["cat", "dog"]
    assert found["samples"] == [
        [f"{name}.zip/{name}/{image.name}", int(name == "dog"), base64.b64encode(image.read_bytes()).decode()]
        for image in images
        for name in [image.parent.name]
    ]


@pytest.mark.long
def test_a_damaged_image_costs_itself_alone_and_says_why(copy: Path, tmp_path: Path) -> None:
    config, archives, folder = packed(tmp_path)
    path = archives / "dog.zip"
    data = bytearray(path.read_bytes())
    packed_name = b"dog/0001.jpg"
    at = data.index(packed_name) + len(packed_name)
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    samples = told(copy, config, tmp_path / "state")["samples"]
    assert samples[4][0] == "dog.zip/dog/0001.jpg"
    assert samples[4][2]["lasting"]
    assert samples[4][2]["bad"].startswith("damaged in its archive: ")
    assert samples[3][2] == base64.b64encode((folder / "dog" / "0000.jpg").read_bytes()).decode()


@pytest.mark.long
def test_the_commands_know_the_new_kind(copy: Path, tmp_path: Path) -> None:
    config, archives, _ = packed(tmp_path)
    done = run(copy, "-c", CHECK, "check", "--config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    (archives / "cat.zip").write_bytes(b"PK")
    done = run(copy, "-c", CHECK, "check", "--config", str(config))
    assert done.returncode == 1
    assert "streams.train.source.path" in done.stderr
    assert "is not a complete zip" in done.stderr
