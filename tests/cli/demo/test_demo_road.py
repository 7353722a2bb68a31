"""The drawn roads: the pictures and their table."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli import demo
from streamd.errors import ConfigError


def write_set(folder: Path, images: int, seed: int = 1) -> list[dict[str, str]]:
    """Writes a set; the rows of its table."""
    with demo.write_driving_set(folder, images, seed, lambda _: None).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_picture_is_rgb_bytes_with_an_angle_in_range() -> None:
    for seed in range(20):
        pixels, angle = demo.draw_road(np.random.default_rng(seed))
        assert (pixels.shape, pixels.dtype, pixels.flags.c_contiguous) == ((128, 128, 3), np.dtype(np.uint8), True)
        assert pixels.std() > 8
        assert -1 <= angle <= 1


@pytest.mark.parametrize(
    "bend",
    [demo.RoadBend(0.0, 0.0, 0.004), demo.RoadBend(1.0, 0.0, 0.0), demo.RoadBend(0.0, 0.05, 0.0)],
    ids=repr,
)
def test_a_road_to_the_right_steers_right_and_its_mirror_left(bend: demo.RoadBend) -> None:
    assert bend.steering_angle > 0
    assert demo.RoadBend(-bend.offset_m, -bend.heading, -bend.curvature).steering_angle == -bend.steering_angle


def test_the_steering_never_leaves_its_range() -> None:
    assert demo.RoadBend(3.0, 0.5, 0.1).steering_angle == 1
    assert demo.RoadBend(-3.0, -0.5, -0.1).steering_angle == -1


@pytest.mark.parametrize("curvature", [0.0, 0.006, -0.006])
@pytest.mark.parametrize("half_m", [0.01, 1.0])
def test_a_strip_covers_its_width_in_metres_around_the_centre_line(half_m: float, curvature: float) -> None:
    ground = demo.project_ground(demo.RoadBend(0.3, 0.02, curvature), horizon=50)
    cover = demo.compute_strip_coverage(ground, 0.0, half_m)
    np.testing.assert_allclose((cover * ground.pixel_m).sum(axis=1)[20:], 2 * half_m, rtol=0.01)
    depth_m, columns = ground.depth_m[20:, 0], np.arange(128) + 0.5
    centre_px = 64 + (0.3 + 0.02 * depth_m + curvature * depth_m**2) / ground.pixel_m[20:, 0]
    np.testing.assert_allclose((cover[20:] * columns).sum(axis=1) / cover[20:].sum(axis=1), centre_px, atol=0.6)


@pytest.mark.long
def test_angles_are_spread_widely_around_zero() -> None:
    angles = [demo.draw_road(np.random.default_rng([11, number]))[1] for number in range(200)]
    assert np.std(angles) == pytest.approx(0.4, abs=0.05)
    assert abs(np.mean(angles)) < 0.08


@pytest.mark.long
def test_the_angle_can_be_read_from_the_picture() -> None:
    drawn = [demo.draw_road(np.random.default_rng([12, number])) for number in range(300)]
    features = np.stack([_small(pixels) for pixels, _ in drawn])
    angles = np.array([angle for _, angle in drawn])
    seen, unseen = slice(0, 240), slice(240, None)
    gram = features[seen] @ features[seen].T + 100 * np.eye(240)
    predicted = features[unseen] @ features[seen].T @ np.linalg.solve(gram, angles[seen])
    guess = np.abs(angles[unseen] - angles[seen].mean()).mean()
    assert np.abs(predicted - angles[unseen]).mean() < 0.7 * guess


def _small(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Where the lower part has upright edges, each row against its own mean: 10 x 31 numbers."""
    grey = pixels[48:].mean(axis=2).reshape(10, 8, 32, 4).mean(axis=(1, 3))
    edges = np.abs(np.diff(grey, axis=1))
    edges = edges / (edges.mean(axis=1, keepdims=True) + 1)
    contrast: npt.NDArray[np.float64] = (edges - edges.mean(axis=1, keepdims=True)).ravel()
    return contrast


def test_a_set_holds_the_images_of_its_table_with_one_in_eight_for_validation(tmp_path: Path) -> None:
    done: list[int] = []
    assert demo.write_driving_set(tmp_path / "roads", 16, 1, done.append) == tmp_path / "roads" / "all.csv"
    assert done == list(range(1, 17))
    rows = write_set(tmp_path / "roads", 16)
    assert list(rows[0]) == ["image", "angle", "split"]
    assert [row["split"] for row in rows] == (["train"] * 7 + ["validation"]) * 2
    assert rows[9]["image"] == "images/00009.jpg"
    for row in rows:
        with Image.open(tmp_path / "roads" / row["image"]) as picture:
            assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (128, 128))


def test_the_picture_on_disk_is_the_one_that_was_labelled(tmp_path: Path) -> None:
    row = write_set(tmp_path, 8, seed=5)[3]
    pixels, angle = demo.draw_road(np.random.default_rng([5, 3]))
    assert float(row["angle"]) == pytest.approx(angle, abs=1e-5)
    with Image.open(tmp_path / row["image"]) as picture:
        assert np.abs(np.asarray(picture, dtype=float) - pixels).mean() < 8


def test_a_larger_set_begins_with_the_smaller_one(tmp_path: Path) -> None:
    small, large = write_set(tmp_path / "small", 8), write_set(tmp_path / "large", 12)
    assert large[:8] == small
    name = small[0]["image"]
    assert (tmp_path / "small" / name).read_bytes() == (tmp_path / "large" / name).read_bytes()


def test_a_file_in_place_of_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="taken"):
        write_set(tmp_path / "taken", 8)
