from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd.config import parsers
from streamd.config.hints import suggest_fraction

Reader = Callable[[object], Any]
count, share = parsers.build_whole_number_parser(1, 65536), parsers.build_number_parser(0, 1, suggest_fraction)


def parse_levels_of_pixels(value: object) -> object:
    """As a configuration reads levels that are not of mode raw."""
    levels = parsers.parse_channel_levels(value)
    assert isinstance(levels, tuple)
    if mistake := parsers.find_level_mistake(levels):
        raise ValueError(mistake)
    return levels


@pytest.mark.parametrize(
    ("read", "written", "value"),
    [
        (count, 1, 1),
        (count, 65536, 65536),
        (share, 1, 1),
        (share, 0.25, 0.25),
        (parsers.build_short_form_parser("kind"), "full", {"kind": "full"}),
        (parsers.build_short_form_parser("kind"), {"kind": "none"}, {"kind": "none"}),
        (parsers.parse_memory_bytes, "1MiB", 1 << 20),
        (parsers.parse_host_port, "[::1]:0", "[::1]:0"),
        (parsers.parse_image_size, [1, 16384], (1, 16384)),
        (parsers.parse_image_size, "stored", "stored"),
        (parsers.parse_channel_levels, [0, 255.0], (0, 255.0)),
        (parsers.parse_channel_levels, [0, 0, 0], (0, 0, 0)),
        (parsers.parse_channel_levels, [1, 1, 1], (1, 1, 1)),
        (parsers.build_bounds_parser(0.5, 2), [0.5, 2], (0.5, 2)),
        (parsers.build_bounds_parser(0.5, 2), [1, 1], (1, 1)),
        (parsers.parse_pixel_range, [0, 1], (0.0, 1.0)),
        (parsers.parse_pixel_range, [-0.5, 65535], (-0.5, 65535.0)),
        (parsers.parse_class_list, ["cat", 0], ("cat", 0)),
        (parsers.parse_from_setting, ["a", "b"], ("a", "b")),
        (parsers.parse_from_setting, None, None),
        (parsers.parse_weights_setting, "w", {"from": "w"}),
        (parsers.parse_weights_setting, {"from": "w"}, {"from": "w"}),
        (parsers.parse_weights_setting, None, None),
        (parsers.parse_transform_setting, "a.b:f", "a.b:f"),
        (parsers.parse_pace_setting, "free", {}),
        (parsers.parse_remainder_setting, "pad", "pad"),
        (parsers.parse_workers_setting, "auto", "auto"),
        (parsers.parse_workers_setting, 1024, 1024),
        (parsers.parse_listen_setting, "ipc:///a", ("ipc:///a",)),
        (parsers.parse_listen_setting, None, None),
    ],
)
def test_an_allowed_value_is_read(read: Reader, written: object, value: object) -> None:
    assert read(written) == value


REFUSED: list[tuple[Reader, tuple[object, ...], str]] = [
    (count, (0, 65537, True, 2.0, "3", None), "a whole number from 1 to 65536"),
    (share, (0, 1.01, -0.5, True, "0.5", float("nan")), "a number above 0, up to 1"),
    (parsers.parse_nonempty_text, ("", "a\0b", 3, None), "use text that is not empty"),
    (parsers.parse_scalar, ([1],), "use text, a number, true or false"),
    (parsers.parse_scalar, (float("inf"),), "found inf; use text, a number, true or false"),
    (parsers.parse_memory_bytes, ("1023KiB",), "1023 KiB is too little; use 1MiB or more"),
    (parsers.parse_host_port, ("9191", "a:", "a:65536", "a b:1", 9191), "address:port"),
    (parsers.parse_image_size, (128, [1], [0, 1], [1, 16385], [1.0, 1], "x"), r"\[height, width\]"),
    (parse_levels_of_pixels, ([], 3, [256], [-1], [True], ["1"]), "each from 0 to 255"),
    (
        parse_levels_of_pixels,
        ([0.5, 0.4],),
        r"here are from 0 to 255: write \[127.5, 102\]; if the images really are that dark",
    ),
    (
        parse_levels_of_pixels,
        ([0.485, 0.456, 0.406],),
        r"write normalize: imagenet, or \[123.675, 116.28, 103.53\]",
    ),
    (
        parse_levels_of_pixels,
        ([0.229, 0.224, 0.225],),
        r"write normalize: imagenet, or \[58.395, 57.12, 57.375\]",
    ),
    (parse_levels_of_pixels, ([0.5, 0.5, 0.5], [0.5]), "write normalize: minus_one_one, or"),
    (
        parsers.parse_pixel_range,
        (1, [0], [0, 1, 2], [0, True], ["0", 1], [0, float("inf")], [float("nan"), 1], None),
        r"\[low, high\], the numbers for black and for white",
    ),
    (parsers.parse_pixel_range, ([1, 0], [1, 1]), "the number for black comes first"),
    (
        parsers.build_bounds_parser(0.5, 2),
        (1, [1], [1, 1, 1], [2, 1], [0.4, 1], [1, 2.1], [True, 2], ["1", 2], None),
        r"\[least, most\], both from 0.5 to 2",
    ),
    (parsers.parse_class_list, ([], "cat", [1.5], [True]), "a list of names or whole numbers"),
    (parsers.parse_class_list, (["a", "b", "a"],), "class 'a' is listed twice"),
    (parsers.parse_from_setting, ("", 3, [], ["a", 1]), "a column"),
    (parsers.parse_weights_setting, (3, True, ["w"], []), "one column"),
    (parsers.parse_transform_setting, ("f", "a:b:c", "a:1", "a.py:f()", 3), "module:function"),
    (parsers.parse_pace_setting, ("fast", None, {}, 10), "free or"),
    (parsers.parse_remainder_setting, ("drop", 1, None), "true, false or pad"),
    (parsers.parse_workers_setting, (0, 1025, "two", True, None), "auto or a whole number"),
    (parsers.parse_listen_setting, ([], 5, {}), "an endpoint"),
]


@pytest.mark.parametrize(
    ("read", "written", "allowed"), [(read, value, allowed) for read, values, allowed in REFUSED for value in values]
)
def test_a_wrong_value_is_refused_with_what_is_allowed(read: Reader, written: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        read(written)
