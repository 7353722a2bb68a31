"""The commands and programs of the first pages, run as they stand there: a reader copies them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import wait_until, write_images

from streamd.config.load import load_config

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
LIMIT_S: Final = 240
NEVER_ENDS: Final = {
    "streamd serve",
    "streamd top",
}  # the first is the daemon below, and tests of its own drive the other
MODEL: Final = """
import keras

def build(spec):
    layers = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input(spec.image_shape), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


def find_block(page: str, language: str, has: str) -> str:
    """The block of a page that has some words."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if has in block)
    return str(block)


def list_commands(page: str, has: str) -> list[str]:
    """The commands of a block, without what is said about them."""
    lines = find_block(page, "sh", has).splitlines()
    return [command for line in lines if (command := line.partition("  #")[0].strip()) not in {"", *NEVER_ENDS}]


@dataclass(frozen=True, slots=True)
class Desk:
    """A reader's folder, with pictures where the pages have /data/pets, and a daemon of their own."""

    folder: Path

    def run(self, *command: str) -> str:
        """Runs a command in the folder, and returns what it printed."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(),
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def type(self, line: str) -> str:
        """Runs a line of a page in a shell."""
        return self.run("bash", "-c", line.replace("/data/", f"{self.folder}/data/"))

    def execute(self, program: str) -> str:
        """Runs a program of a page."""
        return self.run(sys.executable, "-c", program)

    def environment(self) -> dict[str, str]:
        """That of the tests, with this environment's commands and a state of its own."""
        own = {name: str(self.folder / name) for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, **own, "PATH": path, "KERAS_BACKEND": "tensorflow"}


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """After the page's own `init` and `check`, with the daemon that `streamd serve` starts."""
    with tempfile.TemporaryDirectory() as name:
        desk = Desk(Path(name).resolve())
        (desk.folder / "XDG_RUNTIME_DIR").mkdir(mode=0o700)
        write_images(desk.folder / "data" / "pets", {"cat": 40, "dog": 40})
        for command in list_commands("first-steps.md", "streamd init"):
            desk.type(command)
        with (desk.folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                [str(Path(sys.executable).with_name("streamd")), "serve"],
                cwd=desk.folder, env=desk.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                wait_until((desk.folder / "XDG_RUNTIME_DIR/streamd/streamd.sock").exists, "the daemon serves", LIMIT_S)
                yield desk
            finally:
                daemon.send_signal(signal.SIGTERM)
                daemon.wait(LIMIT_S)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_init_writes_the_streams_that_the_page_shows(desk: Desk) -> None:
    shown = find_block("first-steps.md", "yaml", "part: train").replace("/data/pets", f"{desk.folder}/data/pets")
    (desk.folder / "shown.yaml").write_text(shown)
    wrote, said = (load_config(desk.folder / name) for name in ("config.yaml", "shown.yaml"))

    assert wrote.streams.keys() == said.streams.keys()
    for name, stream in said.streams.items():
        assert (wrote.streams[name].source, wrote.streams[name].batch_size) == (stream.source, stream.batch_size)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_of_the_first_steps_work(desk: Desk) -> None:
    commands = [
        each for each in list_commands("first-steps.md", "streamd show") if not each.startswith("streamd-train")
    ]
    assert commands == ["streamd show train -o batch.png", "streamd status"]
    for command in commands:
        desk.type(command)

    assert (desk.folder / "batch.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_stream_is_packed_as_the_page_says(desk: Desk) -> None:
    (command,) = list_commands("data.md", "streamd pack")

    assert "kind: npy" in desk.type(command)
    assert (desk.folder / "data" / "train.packed").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_loop_without_a_framework_takes_every_sample(desk: Desk) -> None:
    loop = find_block("your-code.md", "python", "batch.sample_ids")
    said = desk.execute(
        f"import streamd\nclient = streamd.connect()\nseen = 0\n{loop}    seen += int((batch.sample_ids >= 0).sum())\n"
        "    token = batch.token\nprint(seen, client.spec('train').samples)\n"
        "client.subscribe('train', resume=token).close()"
    )

    seen, samples = said.split()
    assert seen == samples


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_notebook_shows_a_batch_of_a_folder(desk: Desk) -> None:
    block = find_block("your-code.md", "python", "streamd.local").replace('"pets"', '"data/pets"')
    shown = block.replace('client.batch("train", 0, 0)', 'print(client.batch("train", 0, 0)._repr_html_())')

    assert "<img" in desk.execute(shown)


@pytest.mark.train
@pytest.mark.timeout(900)
def test_streamd_train_trains_as_the_page_says(desk: Desk) -> None:
    (desk.folder / "mymodel.py").write_text(MODEL)
    for command in list_commands("first-steps.md", "streamd show"):
        if command.startswith("streamd-train"):
            desk.type(command.replace("--epochs 10", "--epochs 1"))

    assert {"pets.keras", "mine.keras"} <= {path.name for path in desk.folder.iterdir()}


@pytest.mark.train
@pytest.mark.timeout(900)
def test_the_keras_program_trains_and_prints_its_receipt(desk: Desk) -> None:
    program = find_block("your-code.md", "python", "model.fit(fit_data(stream), epochs=10)")
    layers = 'keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2, activation="softmax")'
    said = desk.execute(f"import keras\n{program.replace('...', layers).replace('epochs=10', 'epochs=1')}")

    assert "missed=0, repeated=0" in said
    assert "ok=True" in said


@pytest.mark.train
@pytest.mark.timeout(900)
def test_the_keras_program_for_masks_trains_on_photos_with_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("photos", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(16):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(tmp_path / f"photos/{number}.jpg")
        Image.fromarray(rng.integers(0, 21, (40, 50), np.uint8)).save(tmp_path / f"masks/{number}.png")
    images = {
        "photo": {"size": [32, 32]},
        "mask": {"from": "{stem}.png", "root": "masks", "like": "photo", "mode": "index"},
    }
    stream = {"source": {"kind": "folder", "path": "photos"}, "labels": {}, "batch_size": 8, "images": images}
    inputs, masks = (find_block("models.md", "python", has) for has in ("pictures = {", "ignore_class=255"))
    program = (
        f"import keras, streamd\nfrom streamd.frameworks.keras import normalization\n"
        f"client = streamd.local({ {'streams': {'train': stream}}!r})\nstream = client.subscribe('train')\n"
        f"{inputs}assert list(inputs) == ['photo'] and len(features) == 1\nstream.close()\n"
        f"{masks.replace('epochs=10', 'epochs=1')}"
    )

    Desk(tmp_path).execute(program)
