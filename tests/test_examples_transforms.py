"""The transforms of examples/ do what they say, as a worker runs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from streamd.config.load import load_config
from streamd.config.rules import list_unserved_settings
from streamd.core.sampler import build_generators
from streamd.core.spec import ImageSpec, LabelSpec, PixelId
from streamd.dataset.manifest.manifest import Manifest
from streamd.dataset.transform_source import find_transform_source
from streamd.limits import WORKER_ENVIRONMENT
from streamd.worker.transforms import RNG_PURPOSE, open_transform

FOLDER: Final = Path(__file__).parent.parent / "examples" / "transforms"
LABELS: Final = {"photos": LabelSpec("label", "category", classes=("cat", "dog")), "drive": LabelSpec("angle", "float")}
SAMPLES: Final = 12


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a worker, and nothing of it left here."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    for name, value in WORKER_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield
    for name in [name for name in sys.modules if str(FOLDER) in name]:
        del sys.modules[name]


def transformed(stream: str, epoch: int = 0) -> tuple[list[Any], list[float]]:
    """What the stream's transform makes of twelve grey ramps, and of labels of 1."""
    config = load_config(FOLDER / "config.yaml")
    text, label = config.streams[stream].transform, LABELS[stream]
    assert text is not None
    manifest = cast("Manifest", SimpleNamespace(labels={label.name: label}))
    tried = open_transform(
        find_transform_source(text, config.base_folder), manifest, {"image": ImageSpec(16, 24, 3)}, PixelId("decoded")
    )
    assert tried.remark == ""
    images = np.broadcast_to(np.arange(0, 240, 10, dtype=np.uint8)[None, None, :, None], (SAMPLES, 16, 24, 3)).copy()
    labels = {label.name: np.ones(SAMPLES, label.dtype)}
    for place, rng in enumerate(build_generators(0, epoch, np.arange(SAMPLES), RNG_PURPOSE)):
        tried.call.transform_row({"image": images[place]}, labels, place, rng)
    return list(images), labels[label.name].tolist()


def test_their_configuration_is_one() -> None:
    config = load_config(FOLDER / "config.yaml")
    assert list_unserved_settings(config) == []
    assert config.base_folder == FOLDER
    assert config.streams["drive_validation"].transform is None


@pytest.mark.usefixtures("apart")
def test_a_mirrored_frame_steers_the_other_way_and_half_of_them_are() -> None:
    images, angles = transformed("drive")
    falls = [int(image[0, 0, 0]) > int(image[0, -1, 0]) for image in images]
    assert 2 <= sum(falls) <= SAMPLES - 2
    assert angles == [-1.0 if fall else 1.0 for fall in falls]


@pytest.mark.long
@pytest.mark.usefixtures("apart")
def test_the_pipeline_of_albumentations_goes_by_sample_and_epoch() -> None:
    first, labels = transformed("photos")
    again, _ = transformed("photos")
    later, _ = transformed("photos", epoch=1)
    assert [image.tobytes() for image in first] == [image.tobytes() for image in again]
    assert len({image.tobytes() for image in [*first, *later]}) > SAMPLES
    assert labels == [1] * SAMPLES
