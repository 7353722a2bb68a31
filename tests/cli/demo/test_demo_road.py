"""Drawn roads: what is in the picture, what is in the tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from streamd.cli.demo import road
from streamd.errors import ConfigError

STRAIGHT = road.RoadBend(offset_m=0.0, heading=0.0, curvature=0.0)


def ignore(_done: int) -> None: ...


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_picture_is_rgb_bytes_with_an_angle_in_range() -> None:
    for seed in range(20):
        pixels, angle = road.draw_road(np.random.default_rng(seed))
        assert pixels.shape == (128, 128, 3)
        assert pixels.dtype == np.uint8
        assert pixels.flags.c_contiguous
        assert pixels.std() > 8
        assert -1 <= angle <= 1


def test_the_same_generator_draws_the_same_picture_and_another_a_different_one() -> None:
    first, again, other = (road.draw_road(np.random.default_rng(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first[0], again[0])
    assert first[1] == again[1]
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize(
    "bend",
    [road.RoadBend(0.0, 0.0, 0.004), road.RoadBend(1.0, 0.0, 0.0), road.RoadBend(0.0, 0.05, 0.0)],
    ids=repr,
)
def test_a_road_that_goes_right_asks_for_steering_right_and_its_mirror_for_left(bend: road.RoadBend) -> None:
    assert bend.steering_angle > 0
    assert road.RoadBend(-bend.offset_m, -bend.heading, -bend.curvature).steering_angle == -bend.steering_angle
    assert STRAIGHT.steering_angle == 0


def test_the_steering_never_leaves_its_range() -> None:
    assert road.RoadBend(3.0, 0.5, 0.1).steering_angle == 1
    assert road.RoadBend(-3.0, -0.5, -0.1).steering_angle == -1


@pytest.mark.parametrize("curvature", [0.0, 0.006, -0.006])
def test_a_strip_covers_its_width_in_metres_around_the_centre_line(curvature: float) -> None:
    bend = road.RoadBend(offset_m=0.3, heading=0.02, curvature=curvature)
    ground = road._project_ground(bend, horizon=50.3)
    cover = road._compute_strip_coverage(ground, 0.0, 1.0)
    for row in (20, 30, 40):
        metres = float(ground.pixel_m[row, 0])
        columns = np.arange(128) + 0.5
        middle = float((cover[row] * columns).sum() / cover[row].sum())
        expected = 64 + bend.compute_centre_m(float(ground.depth_m[row, 0])) / metres
        assert cover[row].sum() * metres == pytest.approx(2.0, rel=0.01)
        assert middle == pytest.approx(expected, abs=0.1)


def test_a_line_thinner_than_a_pixel_keeps_its_share_of_paint() -> None:
    ground = road._project_ground(STRAIGHT, horizon=50.0)
    painted_m = (road._compute_strip_coverage(ground, 0.0, 0.01) * ground.pixel_m).sum(axis=1)
    np.testing.assert_allclose(painted_m[5:], 0.02, rtol=0.02)


def test_dashes_are_painted_or_not_when_near_and_an_even_grey_when_far() -> None:
    ground = road._project_ground(STRAIGHT, horizon=50.0)
    share = road._compute_dash_coverage(ground, dash_m=0.5, gap_m=1.5, start_m=0.0)[:, 0]
    assert share.min() >= -1e-5
    assert share.max() <= 1 + 1e-5
    assert share[0] == pytest.approx(0.25, abs=0.05)
    assert {0.0, 1.0} <= {round(float(value), 3) for value in share[-30:]}


@pytest.mark.long
def test_angles_are_spread_widely_around_zero() -> None:
    angles = [road.draw_road(np.random.default_rng([11, number]))[1] for number in range(200)]
    assert np.std(angles) == pytest.approx(0.4, abs=0.05)
    assert abs(np.mean(angles)) < 0.08


@pytest.mark.long
def test_the_angle_can_be_read_from_the_picture() -> None:
    drawn = [road.draw_road(np.random.default_rng([12, number])) for number in range(300)]
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


def test_a_set_has_every_image_of_its_tables_and_one_in_eight_for_validation(tmp_path: Path) -> None:
    done: list[int] = []
    listing = road.write_driving_set(tmp_path / "roads", 16, 1, done.append)
    rows = table(listing)
    assert listing == tmp_path / "roads" / "all.csv"
    assert list(rows[0]) == ["image", "angle", "split"]
    assert [row["split"] for row in rows] == (["train"] * 7 + ["validation"]) * 2
    assert rows[9]["image"] == "images/00009.jpg"
    assert done == list(range(1, 17))
    for row in rows:
        with Image.open(tmp_path / "roads" / row["image"]) as picture:
            assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (128, 128))


def test_the_picture_on_disk_is_the_one_that_was_labelled(tmp_path: Path) -> None:
    rows = table(road.write_driving_set(tmp_path, 8, 5, ignore))
    pixels, angle = road.draw_road(np.random.default_rng([5, 3]))
    assert float(rows[3]["angle"]) == pytest.approx(angle, abs=1e-5)
    with Image.open(tmp_path / rows[3]["image"]) as picture:
        assert np.abs(np.asarray(picture, dtype=float) - pixels).mean() < 8


def test_a_larger_set_begins_with_the_smaller_one(tmp_path: Path) -> None:
    small = table(road.write_driving_set(tmp_path / "small", 8, 2, ignore))
    large = table(road.write_driving_set(tmp_path / "large", 12, 2, ignore))
    assert large[:8] == small
    name = small[0]["image"]
    assert (tmp_path / "small" / name).read_bytes() == (tmp_path / "large" / name).read_bytes()


def test_an_interrupted_set_leaves_no_listing_behind(tmp_path: Path) -> None:
    road.write_driving_set(tmp_path, 8, 0, ignore)

    def interrupt(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        road.write_driving_set(tmp_path, 8, 1, interrupt)
    assert not (tmp_path / "all.csv").exists()


@pytest.mark.parametrize(("images", "seed", "named"), [(7, 0, "7 images"), (8, -1, "-1")])
def test_a_set_that_cannot_be_made_is_refused_with_the_number(
    tmp_path: Path, images: int, seed: int, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        road.write_driving_set(tmp_path, images, seed, ignore)


def test_a_folder_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="taken"):
        road.write_driving_set(tmp_path / "taken", 8, 0, ignore)
