"""Faults are reported together: ten places of each kind, and one line for each kind."""

from __future__ import annotations

import pytest

from streamd.dataset.labels.encode import format_other_locations, raise_collected_faults
from streamd.errors import ConfigError


def locate(row: int) -> str:
    return f"all.csv, line {row + 2}"


def test_ten_places_are_named_and_the_rest_is_counted() -> None:
    assert format_other_locations([3], locate) == ""
    assert format_other_locations([3, 5], locate, "'{}'".format) == " (also line 7 '5')"
    said = format_other_locations(range(1010), locate)
    assert said.startswith(" (also line 3, line 4, ")
    assert said.endswith(", line 11 and 1,000 more)")


def test_all_collected_faults_are_raised_together_with_the_last_error() -> None:
    def fail() -> None:
        with raise_collected_faults() as faults:
            for name in ("one", "two"):
                with faults.collect():
                    raise ConfigError(name)
            raise ConfigError("three")

    with pytest.raises(ConfigError) as caught:
        fail()
    assert str(caught.value) == "one\ntwo\nthree"


def test_a_single_fault_is_raised_unchanged() -> None:
    only = ConfigError("one")
    with pytest.raises(ConfigError) as caught, raise_collected_faults() as faults, faults.collect():
        raise only
    assert caught.value is only
    with raise_collected_faults():
        pass
