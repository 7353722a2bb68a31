"""`streamd show`: the picture that it writes, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.daemon_process import DaemonProcess, stream_config, write_images
from typer.testing import CliRunner, Result

import streamd
from streamd.cli.main import app, parse_batch_position
from streamd.decode.drawn_picture import draw_sheet
from streamd.errors import ConfigError, RefusedError


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("d")
    folder = write_images(place / "data", {"cat": 10, "Zoë": 10})
    (folder / "cat" / "0003.jpg").write_bytes(b"\xff\xd8\xff" + bytes(500))
    padded = stream_config(folder, shuffle="none", drop_remainder="pad")
    daemon = DaemonProcess(place, {"streams": {"train": stream_config(folder), "validation": padded}}).start()
    yield daemon.endpoint
    daemon.kill()


def show(endpoint: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["show", *arguments, "--endpoint", endpoint])


@pytest.mark.parametrize("place", ["0:0", "3:1", "0:2"])
def test_the_picture_shows_the_batch_that_trainers_get(endpoint: str, tmp_path: Path, place: str) -> None:
    done = show(endpoint, "validation", place, "-o", str(tmp_path / "batch.png"))
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path}/batch.png: 8 rows of validation {place}\n")
    with streamd.connect(endpoint) as client:
        batch = client.batch("validation", *parse_batch_position(place))
        names = dict(zip(batch.sample_ids.tolist(), client.names("validation", batch.sample_ids), strict=True))
    names.pop(-1, None)
    with Image.open(tmp_path / "batch.png") as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(draw_sheet(batch, names, 256)))


def test_without_a_name_the_picture_is_named_after_the_batch(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = show(endpoint, "train", "1:2", "--rows", "3")
    assert (done.exit_code, done.stdout) == (0, "batch-train-1-2.png: the first 3 of 4 rows of train 1:2\n")
    with Image.open("batch-train-1-2.png") as picture:
        assert picture.format == "PNG"


def test_without_a_position_the_first_batch_is_shown(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert show(endpoint, "train").stdout == "batch-train-0-0.png: 8 rows of train 0:0\n"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["trian", "0:0"], RefusedError, "did you mean 'train'"),
        (["train", "0:3"], RefusedError, "no batch 0:3"),
        (["train", "3"], ConfigError, "write EPOCH:INDEX"),
        (["train", "0:0", "-o", "batch.jpg"], ConfigError, "ends in .png"),
        (["train", "0:0", "-o", "nowhere/batch.png"], OSError, "nowhere"),
    ],
)
def test_a_batch_that_cannot_be_shown_is_an_error_and_leaves_no_file(
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    error: type[Exception],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = show(endpoint, *arguments)
    assert isinstance(done.exception, error)
    assert says in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "3", ":", "1:", ":1", "-1:0", "0:-1", "0:1:2", "a:b", "0: 1", "1.0:2", "²:1"])
def test_an_invalid_batch_position_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(ConfigError, match="write EPOCH:INDEX, both counted from 0"):
        parse_batch_position(text)


@pytest.mark.parametrize(
    ("text", "place"), [("0:12", (0, 12)), ("07:0", (7, 0)), ("123456789012:1", (123456789012, 1))]
)
def test_a_batch_position_is_an_epoch_and_an_index(text: str, place: tuple[int, int]) -> None:
    assert parse_batch_position(text) == place
