from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.config.units import format_bytes, format_yaml_value, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("1GiB", 1 << 30),
        ("512 MB", 512_000_000),
        ("1.5GiB", 3 << 29),
        ("2.3KB", 2300),
        ("7", 7),
        ("7 b", 7),
        ("1tib", 1 << 40),
        (4096, 4096),
        (1e9, 1_000_000_000),
    ],
)
def test_a_size_is_read_as_people_write_it(written: object, count: int) -> None:
    assert parse_bytes(written) == count


@pytest.mark.parametrize(
    "written",
    ["", "GiB", "1 GiBi", "-1MiB", -1, "1e9", True, None, [1], float("nan"), float("inf"), 1 << 63, "9" * 5000],
)
def test_an_invalid_size_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a size; write a size such as 512MiB"):
        parse_bytes(written)


@pytest.mark.parametrize(
    ("written", "seconds"), [("10s", 10), ("250ms", 0.25), ("2m", 120), ("2 min", 120), ("1h", 3600), (3, 3), ("4", 4)]
)
def test_a_duration_is_read_as_people_write_it(written: object, seconds: float) -> None:
    assert parse_seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["fast", "10x", "-1s", False, None, float("inf")])
def test_an_invalid_duration_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write a duration such as 10s"):
        parse_seconds(written)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), (1 << 40, "1 TiB")],
)
def test_bytes_are_shown_in_their_largest_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, (1 << 50)))
def test_a_shown_size_reads_back_to_within_its_rounding(count: int) -> None:
    assert parse_bytes(format_bytes(count).replace("bytes", "b").replace("byte", "b")) == pytest.approx(count, rel=0.05)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing (null)"),
        (True, "true"),
        ({"a": 1}, "a mapping"),
        ([1, "b"], "[1, 'b']"),
        (list(range(9)), "a list"),
        ("x" * 100, "'" + "x" * 56 + "..."),
    ],
)
def test_a_value_is_shown_short_and_in_yaml_words(value: object, text: str) -> None:
    assert format_yaml_value(value) == text


@pytest.mark.parametrize(("written", "meant"), [("1G", "1GiB"), ("512m", "512MiB"), ("1.5 Gi", "1.5GiB")])
def test_a_size_in_other_units_suggests_ours(written: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}\\?"):
        parse_bytes(written)


@pytest.mark.parametrize(("written", "meant"), [("10 sec", "10s"), ("2 minutes", "2m"), ("1hr", "1h")])
def test_a_duration_in_other_units_suggests_ours(written: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}\\?"):
        parse_seconds(written)
