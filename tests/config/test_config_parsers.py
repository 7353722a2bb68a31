from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd.config import parsers
from streamd.config.hints import suggest_fraction

Reader = Callable[[object], Any]
count, share = parsers.build_whole_reader(1, 65536), parsers.build_number_reader(0, 1, suggest_fraction)
BAD_PACES: tuple[object, ...] = ("fast", None, {}, 10)
BAD_LISTS: tuple[object, ...] = ([], 5, {})


@pytest.mark.parametrize(
    ("read", "written", "value"),
    [
        (count, 1, 1),
        (count, 65536, 65536),
        (share, 1, 1),
        (share, 0.25, 0.25),
        (parsers.build_short_reader("kind"), "full", {"kind": "full"}),
        (parsers.build_short_reader("kind"), {"kind": "none"}, {"kind": "none"}),
        (parsers.read_memory, "1MiB", 1 << 20),
        (parsers.read_host_port, "[::1]:0", "[::1]:0"),
        (parsers.read_size, [1, 16384], (1, 16384)),
        (parsers.read_size, "stored", "stored"),
        (parsers.read_levels, [0, 255.0], (0, 255.0)),
        (parsers.read_levels, [0, 0, 0], (0, 0, 0)),
        (parsers.read_levels, [1, 1, 1], (1, 1, 1)),
        (parsers.build_bounds_reader(0.5, 2), [0.5, 2], (0.5, 2)),
        (parsers.build_bounds_reader(0.5, 2), [1, 1], (1, 1)),
        (parsers.read_range, [0, 1], (0.0, 1.0)),
        (parsers.read_range, [-0.5, 65535], (-0.5, 65535.0)),
        (parsers.read_classes, ["cat", 0], ("cat", 0)),
        (parsers.read_from, ["a", "b"], ("a", "b")),
        (parsers.read_from, None, None),
        (parsers.read_weights, "w", {"from": "w"}),
        (parsers.read_weights, {"from": "w"}, {"from": "w"}),
        (parsers.read_weights, None, None),
        (parsers.read_transform, "a.b:f", "a.b:f"),
        (parsers.read_pace, "free", {}),
        (parsers.read_remainder, "pad", "pad"),
        (parsers.read_workers, "auto", "auto"),
        (parsers.read_workers, 1024, 1024),
        (parsers.read_listen, "ipc:///a", ("ipc:///a",)),
        (parsers.read_listen, None, None),
    ],
)
def test_what_is_allowed_is_read(read: Reader, written: object, value: object) -> None:
    assert read(written) == value


@pytest.mark.parametrize(
    ("read", "written", "allowed"),
    [
        *((count, written, "a whole number from 1 to 65536") for written in (0, 65537, True, 2.0, "3", None)),
        *((share, written, "a number above 0, up to 1") for written in (0, 1.01, -0.5, True, "0.5", float("nan"))),
        *((parsers.read_text, written, "a text that is not empty") for written in ("", "a\0b", 3, None)),
        (parsers.read_scalar, [1], "a text, a number, true or false"),
        (parsers.read_scalar, float("inf"), "found inf; use a text, a number, true or false"),
        (parsers.read_memory, "1023KiB", "1023 KiB is too little; use 1MiB or more"),
        *((parsers.read_host_port, written, "address:port") for written in ("9191", "a:", "a:65536", "a b:1", 9191)),
        *(
            (parsers.read_size, written, r"\[height, width\]")
            for written in (128, [1], [0, 1], [1, 16385], [1.0, 1], "x")
        ),
        *((parsers.read_levels, written, "each from 0 to 255") for written in ([], 3, [256], [-1], [True], ["1"])),
        (parsers.read_levels, [0.5, 0.4], r"0-255 here: write \[127.5, 102\]; if images are as dark as that"),
        (parsers.read_levels, [0.485, 0.456, 0.406], r"write normalize: imagenet, or \[123.675, 116.28, 103.53\]"),
        (parsers.read_levels, [0.229, 0.224, 0.225], r"write normalize: imagenet, or \[58.395, 57.12, 57.375\]"),
        (parsers.read_levels, [0.5, 0.5, 0.5], "write normalize: minus_one_one, or"),
        (parsers.read_levels, [0.5], "write normalize: minus_one_one, or"),
        *(
            (parsers.read_range, written, r"\[low, high\], the numbers of black and of white")
            for written in (1, [0], [0, 1, 2], [0, True], ["0", 1], [0, float("inf")], [float("nan"), 1], None)
        ),
        *((parsers.read_range, written, "the number of black comes first") for written in ([1, 0], [1, 1])),
        *(
            (parsers.build_bounds_reader(0.5, 2), written, r"\[least, most\], both from 0.5 to 2")
            for written in (1, [1], [1, 1, 1], [2, 1], [0.4, 1], [1, 2.1], [True, 2], ["1", 2], None)
        ),
        *(
            (parsers.read_classes, written, "a list of names or whole numbers")
            for written in ([], "cat", [1.5], [True])
        ),
        (parsers.read_classes, ["a", "b", "a"], "class 'a' is listed twice"),
        *((parsers.read_from, written, "a column") for written in ("", 3, [], ["a", 1])),
        *((parsers.read_weights, written, "one column") for written in (3, True, ["w"], [])),
        *((parsers.read_transform, written, "module:function") for written in ("f", "a:b:c", "a:1", "a.py:f()", 3)),
        *((parsers.read_pace, written, "free or") for written in BAD_PACES),
        *((parsers.read_remainder, written, "true, false or pad") for written in ("drop", 1, None)),
        *((parsers.read_workers, written, "auto or a whole number") for written in (0, 1025, "two", True, None)),
        *((parsers.read_listen, written, "an endpoint") for written in BAD_LISTS),
    ],
)
def test_what_is_not_allowed_is_told_what_is(read: Reader, written: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        read(written)
