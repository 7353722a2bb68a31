"""Prints the modules that run while one trainer takes batches of a folder of JPEGs, by process.

    .venv/bin/python tools/trace_walk.py

Every function that is called is noted, in the daemon, its worker and this process, once all of them have settled: what
only a start, an end or a fault needs is not among them. ARCHITECTURE.md has the counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

SETTLED_BATCHES: Final = 20
WATCHED_BATCHES: Final = 4
ROLES: Final = {"streamd.client": "trainer", "streamd.daemon": "daemon", "streamd.worker": "worker"}
# Python runs a module of this name in every process, before anything else.
NOTER: Final = """
import os, sys, threading
folder, seen = os.environ["WALK_FOLDER"], set()
def note(frame, event, arg):
    file = frame.f_code.co_filename
    if event == "call" and "/streamd/" in file and file not in seen and os.path.exists(folder + "/watched"):
        seen.add(file)
        with open(f"{folder}/{os.getpid()}.walk", "a") as out:
            print("streamd/" + file.rpartition("/streamd/")[2], file=out)
threading.setprofile(note)
sys.setprofile(note)
"""


def make_pictures(folder: Path) -> None:
    """Writes 128 JPEGs of two classes."""
    rng = np.random.default_rng(0)
    for number in range(128):
        place = folder / f"class-{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8)).save(place / f"{number}.jpg")


def take_batches(folder: Path) -> None:
    """Serves the pictures from this process, and has the calls noted while it takes some batches."""
    import streamd  # noqa: PLC0415 - in the process whose calls are noted

    source = {"kind": "folder", "path": str(folder / "pictures")}
    stream = {"source": source, "image": {"size": [32, 32]}, "batch_size": 8}
    config = {"memory": "256MiB", "workers": 1, "streams": {"train": stream}}
    with streamd.local(config) as client, client.subscribe("train") as subscribed:
        batches = iter(subscribed)
        for _ in range(SETTLED_BATCHES):
            next(batches)
        (folder / "watched").touch()
        for _ in range(WATCHED_BATCHES):
            next(batches)
        (folder / "watched").unlink()


def main() -> None:
    """Runs itself as the trainer, and prints what was noted."""
    if folder := os.environ.get("WALK_FOLDER"):
        take_batches(Path(folder))
        return
    with tempfile.TemporaryDirectory() as place:
        make_pictures(Path(place) / "pictures")
        (Path(place) / "sitecustomize.py").write_text(NOTER)
        environment = {**os.environ, "WALK_FOLDER": place, "PYTHONPATH": place}
        subprocess.run([sys.executable, __file__], env=environment, check=True)
        found: dict[str, set[str]] = defaultdict(set)
        for each in Path(place).glob("*.walk"):
            modules = {line.removesuffix(".py").replace("/", ".") for line in each.read_text().split()}
            role = next((role for root, role in ROLES.items() if any(name.startswith(root) for name in modules)), "?")
            found[role] |= modules
    for role, modules in sorted(found.items()):
        print(f"{role}: {len(modules)} modules", *sorted(modules), sep="\n  ")
    print(f"all: {len(set().union(*found.values()))} modules")


if __name__ == "__main__":
    main()
