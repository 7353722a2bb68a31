"""What the migration page says of classes, files, labels and pixels, beside the loaders themselves."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from loader_process import python_of
from make_data import PHOTOGRAPHS, QUALITY, Cut, cut, photograph
from support.daemon_process import DaemonProcess, write_images

import streamd

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SIDE: Final = 128  # to which they are brought
SMALLER: Final = (96, 128)  # width and height of what is enlarged
LARGER: Final = ((500, 375), (375, 500))  # of what is made smaller, three or four times
UNEVEN: Final = (301, 203)  # whose longer side is no whole number of pixels when the shorter one is SIDE

pytestmark = [pytest.mark.train, pytest.mark.timeout(240)]  # it may have to install torch


def write_photographs(folder: Path, *sizes: tuple[int, int]) -> Path:
    """Photographs in several sizes, a class each: CLASS/WIDTHxHEIGHT.jpg and .png."""
    for number, name in enumerate(PHOTOGRAPHS):
        room = folder / Path(name).stem
        room.mkdir(parents=True)
        for width, height in sizes:
            rng = np.random.default_rng(number)
            tile = cut(photograph(name), Cut((width, height), min_crop=190, seed=0), rng)
            tile.save(room / f"{width}x{height}.jpg", quality=QUALITY)
            tile.save(room / f"{width}x{height}.png")
    return folder


def stream_of(source: Mapping[str, object], **image: object) -> dict[str, object]:
    return {"source": source, "image": {"size": [SIDE, SIDE], **image}, "batch_size": 10, "shuffle": "none"}


def daemon_config(folder: Path, streams: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """A stream of each name, with what its image says."""
    return {
        "streams": {
            name: stream_of({"kind": "folder", "path": str(folder)}, **image) for name, image in streams.items()
        }
    }


KERAS_ARGUMENTS: Final[Mapping[str, Mapping[str, bool]]] = {
    "stretch": {},
    "crop": {"crop_to_aspect_ratio": True},
    "pad": {"pad_to_aspect_ratio": True},
}


def test_keras_lists_the_same_and_shows_nearly_the_same(
    tmp_path: Path, start_daemon: Callable[..., DaemonProcess]
) -> None:
    """In the means over ten photographs."""
    import keras  # noqa: PLC0415 - takes seconds, which a run without this test need not wait for

    folder = write_photographs(tmp_path / "images", SMALLER, *LARGER)
    daemon = start_daemon(daemon_config(folder, {resize: {"resize": resize} for resize in KERAS_ARGUMENTS}))
    with streamd.connect(daemon.endpoint) as client:
        for resize, arguments in KERAS_ARGUMENTS.items():
            theirs = keras.utils.image_dataset_from_directory(
                folder, image_size=(SIDE, SIDE), batch_size=10, shuffle=False, verbose=False, **arguments
            )
            names, differences = client.names(resize, range(60)), defaultdict[str, list[float]](list)
            assert [str(folder / name) for name in names] == theirs.file_paths
            with client.subscribe(resize, epochs=1) as stream:
                assert list(stream.spec.labels["label"].classes) == theirs.class_names
                for batch, (images, labels) in zip(stream, theirs, strict=True):
                    assert batch.labels["label"].tolist() == labels.numpy().tolist()
                    levels = np.abs(images.numpy() - batch.images).mean(axis=(1, 2, 3))
                    for sample, level in zip(batch.sample_ids, levels, strict=True):
                        differences[Path(names[sample]).name].append(float(level))
            means = {name: float(np.mean(levels)) for name, levels in differences.items()}
            width, height = SMALLER
            assert means[f"{width}x{height}.png"] < 0.35, resize
            assert means[f"{width}x{height}.jpg"] < 1.1, resize
            assert all(2.5 < means[f"{w}x{h}.{suffix}"] < 4.5 for w, h in LARGER for suffix in ("jpg", "png")), resize


def test_a_list_of_file_paths_keeps_the_split_that_keras_made(
    tmp_path: Path, start_daemon: Callable[..., DaemonProcess]
) -> None:
    import keras  # noqa: PLC0415 - as above

    folder = write_photographs(tmp_path / "images", SMALLER, *LARGER)
    train, _ = keras.utils.image_dataset_from_directory(
        folder, image_size=(SIDE, SIDE), validation_split=0.2, subset="both", seed=0, verbose=False
    )
    lines = [f"{Path(path).relative_to(folder)} {Path(path).parent.name}\n" for path in train.file_paths]
    (tmp_path / "train.txt").write_text("".join(lines))
    source = {"kind": "filelist", "path": str(tmp_path / "train.txt"), "root": str(folder)}
    daemon = start_daemon({"streams": {"train": stream_of(source)}})
    with streamd.connect(daemon.endpoint) as client:
        assert [str(folder / name) for name in client.names("train", range(48))] == train.file_paths
        assert list(client.spec("train").labels["label"].classes) == train.class_names


def test_classes_keep_the_order_that_keras_has_for_folders_named_by_numbers(
    tmp_path: Path, start_daemon: Callable[..., DaemonProcess]
) -> None:
    import keras  # noqa: PLC0415 - as above

    folder = write_images(tmp_path / "images", {"2": 1, "10": 1, "0": 1, "1": 1})
    theirs = keras.utils.image_dataset_from_directory(
        folder, image_size=(SIDE, SIDE), batch_size=4, shuffle=False, verbose=False
    )
    ((_, codes),) = theirs
    source = {"kind": "folder", "path": str(folder)}
    numbers, texts = stream_of(source), stream_of(source)
    texts["labels"] = {"text": {"type": "category", "classes": theirs.class_names}}
    daemon = start_daemon({"streams": {"numbers": numbers, "texts": texts}})
    with streamd.connect(daemon.endpoint) as client:
        assert client.spec("numbers").labels["label"].classes == (0, 1, 2, 10)
        assert client.batch("numbers", 0, 0).labels["label"].tolist() == [0, 1, 3, 2]
        assert client.batch("texts", 0, 0).labels["text"].tolist() == codes.numpy().tolist() == [0, 1, 2, 3]


def test_torchvision_lists_the_same_and_shows_the_same_where_decoding_is_exact(
    tmp_path: Path, start_daemon: Callable[..., DaemonProcess]
) -> None:
    """In the means over ten photographs, but for `exact`, where no pixel differs."""
    folder = write_photographs(tmp_path / "images", SMALLER, UNEVEN, *LARGER)
    streams: dict[str, dict[str, object]] = {
        "exact": {"exact": True},
        "fast": {},
        "crop": {"exact": True, "resize": "crop"},
        "grey": {"exact": True, "mode": "L"},
    }
    daemon = start_daemon(daemon_config(folder, streams))
    done = subprocess.run(
        [python_of("keras_torch"), HERE / "imagefolder_program.py", daemon.endpoint, folder],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["exact"].values()) == {0}
    assert all(difference < (3 if file.endswith("jpg") else 0.001) for file, difference in found["fast"].items())
    uneven = "{}x{}.".format(*UNEVEN)
    assert all(difference < (4.5 if file.startswith(uneven) else 1.1) for file, difference in found["crop"].items())
    assert max(found["grey"].values()) < 0.2
