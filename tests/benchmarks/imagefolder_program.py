"""Run with torch's own Python, beside a daemon: how far streamd's pixels are from those of torchvision's ImageFolder.

python imagefolder_program.py ENDPOINT FOLDER

The last line is JSON: for each stream and file name, the difference in levels, the mean over all classes.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from migration_run import allow_torchvision_without_operators

import streamd
from streamd.frameworks.torch import loader

allow_torchvision_without_operators()

from torchvision import transforms  # noqa: E402 - the line above has to come first
from torchvision.datasets import ImageFolder  # noqa: E402 - as above

SIDE = 128
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "exact": transforms.Resize((SIDE, SIDE)),
    "fast": transforms.Resize((SIDE, SIDE)),
    "crop": transforms.Compose([transforms.Resize(SIDE), transforms.CenterCrop(SIDE)]),
    "grey": transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.Grayscale()]),
}


def compare(client: Any, name: str, folder: str) -> dict[str, float]:
    """Raises AssertionError where classes, files or labels are not those of ImageFolder."""
    theirs = ImageFolder(folder, transforms.Compose([TRANSFORMS[name], transforms.PILToTensor()]))
    names = client.names(name, range(len(theirs)))
    assert [f"{folder}/{each}" for each in names] == [path for path, _ in theirs.samples]
    with client.subscribe(name, epochs=1, batch_size=1) as stream:
        assert list(stream.spec.labels["label"].classes) == theirs.classes
        differences = defaultdict[str, list[float]](list)
        for file, (wanted, target), (images, labels) in zip(names, theirs, loader(stream), strict=True):
            assert labels.tolist() == [target]
            level = np.abs(images[0].numpy().astype(float) - wanted.numpy()).mean()
            differences[file.rpartition("/")[2]].append(float(level))
    return {file: sum(levels) / len(levels) for file, levels in differences.items()}


if __name__ == "__main__":
    with streamd.connect(sys.argv[1]) as known:
        print(json.dumps({name: compare(known, name, sys.argv[2]) for name in TRANSFORMS}))  # noqa: T201 - its product
