"""Masks as `check` describes them: which image they belong to, sizes that do not fit, class numbers."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.cli.check.labels import (
    MaskFindings,
    build_mask_findings,
    find_mask_troubles,
    find_mask_warnings,
)
from streamd.core.spec import ImageSpec
from streamd.decode.geometry import find_leader
from streamd.ipc.worker_messages import ClassPixels, OddSizes, SizeExample
from streamd.worker.inspect_rows import compare_sizes

PHOTO = ImageSpec(24, 32, 3, "random_crop")
MASK: dict[str, Any] = {"mode": "index", "fill": 255}
FOLLOWING = ImageSpec(24, 32, 1, **MASK, like="photo")


def build_findings(mask: ImageSpec, sizes: OddSizes | None = None, photo: ImageSpec = PHOTO) -> MaskFindings:
    """The findings of four samples, named by their number."""
    odd = {} if sizes is None else {"mask": sizes}
    return build_mask_findings({"photo": photo, "mask": mask}, 4, {}, odd, lambda sample_id: f"{sample_id}.png")


def build_class_findings(pixels: dict[int, int], masks: int = 4) -> MaskFindings:
    """The findings of four masks, of which some were counted."""
    return build_mask_findings({"mask": ImageSpec(24, 32, 1, **MASK)}, 4, {"mask": ClassPixels(masks, pixels)}, {}, str)


def test_a_mask_belongs_to_the_image_it_is_like_or_to_the_first_that_is_no_mask() -> None:
    images = {"mask": ImageSpec(8, 8, 1, **MASK), "photo": PHOTO, "other": PHOTO, "right": FOLLOWING}
    assert {name: find_leader(name, images) for name in images} == {
        "mask": "photo",
        "photo": None,
        "other": None,
        "right": "photo",
    }


@pytest.mark.parametrize(
    ("size", "is_scaled"),
    [((30, 40), True), ((31, 41), True), ((120, 160), True), ((80, 60), False), ((60, 70), False)],
)
def test_a_size_is_in_proportion_but_for_rounding(size: tuple[int, int], *, is_scaled: bool) -> None:
    found = compare_sizes(3, size, (60, 80))
    assert (found.scaled, found.skewed) == ((1, 0) if is_scaled else (0, 1))
    assert (found.scaled_example or found.skewed_example) == SizeExample(3, size, (60, 80))


def test_sums_of_odd_sizes_keep_the_first_sample_of_each_kind() -> None:
    found = compare_sizes(5, (80, 60), (60, 80)).add_odd_sizes(compare_sizes(2, (80, 60), (60, 80)))
    assert (found.skewed, found.scaled) == (2, 0)
    assert found.skewed_example == SizeExample(2, (80, 60), (60, 80))


def test_a_mask_of_other_proportions_is_trouble_with_its_file_and_the_remedy() -> None:
    assert list(find_mask_troubles(build_findings(FOLLOWING, compare_sizes(2, (80, 60), (60, 80))))) == [
        (
            "mask: 1 mask has other proportions than photo, such as in 2.png: 80x60 where photo has 60x80, height x "
            "width, and would be stretched out of place; turn each as the EXIF data of its photo say, or save each "
            "with the height and width of its photo"
        )
    ]


def test_a_mask_of_another_size_is_only_reported_where_nothing_brings_it_to_its_picture() -> None:
    half = compare_sizes(2, (30, 40), (60, 80))
    alone = build_findings(ImageSpec(24, 32, 1, **MASK), half, ImageSpec(24, 32, 3))
    assert list(find_mask_warnings(alone)) == [
        (
            "mask: 1 mask has another size than photo, such as in 2.png: 30x40 where photo has 60x80, height x width; "
            "add like: photo to images.mask, which brings both together in proportion"
        )
    ]
    assert list(find_mask_troubles(alone)) == []
    assert list(find_mask_warnings(build_findings(FOLLOWING, half))) == []


@pytest.mark.parametrize("resize", ["stretch", "random_crop"])
def test_a_mask_that_does_not_follow_its_randomly_cropped_picture_is_trouble(resize: Any) -> None:
    apart = build_findings(ImageSpec(24, 32, 1, resize, **MASK))
    assert list(find_mask_troubles(apart)) == [
        "mask shows another part of the picture than photo; add like: photo to images.mask"
    ]
    assert list(find_mask_troubles(build_findings(FOLLOWING))) == []


def test_other_images_of_other_proportions_are_only_worth_knowing() -> None:
    right = build_findings(ImageSpec(24, 32, 3, like="photo"), compare_sizes(2, (80, 60), (60, 80)))
    assert list(find_mask_troubles(right)) == []
    assert [each.partition(",")[0] for each in find_mask_warnings(right)] == [
        "mask: 1 picture has other proportions than photo"
    ]


def test_class_numbers_have_shares_that_are_exact_if_all_masks_were_counted() -> None:
    found = build_class_findings({0: 75, 3: 25}).classes["mask"]
    assert (found.shares, found.classes, found.masks, found.exact) == ({"0": 0.75, "3": 0.25}, 2, 4, True)
    assert not build_class_findings({0: 75, 3: 25}, masks=3).classes["mask"].exact


def test_the_most_frequent_of_many_class_numbers_are_kept() -> None:
    found = build_class_findings({number: number + 1 for number in range(300)}).classes["mask"]
    assert (found.classes, len(found.shares), next(iter(found.shares))) == (300, 256, "44")


@pytest.mark.parametrize(
    ("pixels", "says"),
    [
        ({0: 9}, "mask: every pixel of 4 masks is 0: there is nothing to learn from it"),
        (
            {0: 9, 255: 4},
            (
                "mask holds the class numbers 0 and 255 alone, and 255 is what padding holds, too; save masks of two "
                "classes with the numbers 0 and 1"
            ),
        ),
    ],
)
def test_class_numbers_that_cannot_be_meant_are_warned_of(pixels: dict[int, int], says: str) -> None:
    assert list(find_mask_warnings(build_class_findings(pixels))) == [says]


def test_class_numbers_that_can_be_learned_cause_no_warning() -> None:
    assert list(find_mask_warnings(build_class_findings({0: 9, 1: 4}))) == []
    assert list(find_mask_warnings(build_class_findings({0: 9, 1: 4, 255: 1}))) == []
