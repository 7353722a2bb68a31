from __future__ import annotations

import pytest

from streamd.config.locations import ConfigProblem, KeyLocations, KeyPath, add_locations, format_keys, format_problems

LINES: dict[KeyPath, int] = {(): 1, ("streams",): 2, ("streams", "a"): 3, ("streams", "a", "x"): 4, ("streams", "b"): 6}
PLACES = KeyLocations("f.yaml", LINES, {("b", "x"): "a"})


def test_keys_are_written_as_a_path() -> None:
    assert format_keys(("streams", "a", "x", 0)) == "streams.a.x[0]"
    assert format_keys(()) == ""


def test_an_absent_key_has_the_line_of_its_parent() -> None:
    assert PLACES.find_line(("streams", "a", "x", "deep")) == 4
    assert PLACES.find_line(("streams", "a", "missing")) == 3
    assert PLACES.find_line(("memory",)) == 1


def test_problems_are_listed_in_the_order_of_the_file() -> None:
    problems = [
        ConfigProblem(("streams", "b", "y"), "is bad"),
        ConfigProblem((), "is odd"),
        ConfigProblem(("streams", "a", "x"), "is worse"),
    ]
    assert format_problems(problems, PLACES) == (
        "f.yaml:1: is odd\nf.yaml:4: streams.a.x: is worse\nf.yaml:6: streams.b.y: is bad"
    )


@pytest.mark.parametrize(
    ("keys", "places", "told"),
    [
        pytest.param([("a", "x"), ("b", "x")], PLACES, "f.yaml:4: streams.a.x", id="a copied one is reported once"),
        pytest.param([("b", "x")], PLACES, "f.yaml:4: streams.b.x", id="one of the copy alone keeps its own name"),
        pytest.param([("a", "x")], KeyLocations("it", {}, {}), "it: streams.a.x", id="without a file, without a line"),
    ],
)
def test_a_problem_is_reported_where_the_key_is_written(keys: list[KeyPath], places: KeyLocations, told: str) -> None:
    problems = [ConfigProblem(("streams", *each), "is bad") for each in keys]
    assert format_problems(problems, places) == f"{told}: is bad"


def test_ten_problems_are_listed_and_the_rest_counted() -> None:
    told = format_problems([ConfigProblem((f"k{n}",), "is bad") for n in range(13)], PLACES).splitlines()
    assert len(told) == 11
    assert told[-1] == "and 3 more"


def test_an_index_into_a_list_that_was_not_written_is_omitted() -> None:
    places = KeyLocations("f.yaml", {("listen",): 2, ("many",): 3, ("many", 0): 4}, {})
    told = format_problems([ConfigProblem(("listen", 0), "is bad"), ConfigProblem(("many", 0), "is odd")], places)
    assert told == "f.yaml:2: listen: is bad\nf.yaml:4: many[0]: is odd"


def test_a_data_error_gets_the_line_of_its_key() -> None:
    assert add_locations("streams.a.x: is empty", PLACES) == "f.yaml:4: streams.a.x: is empty"
    assert add_locations("streams.a.x.deep: is empty", PLACES) == "f.yaml:4: streams.a.x.deep: is empty"
    assert add_locations("streams.b.x: is empty\nstreams.b: is odd", PLACES) == (
        "f.yaml:4: streams.b.x: is empty\nf.yaml:6: streams.b: is odd"
    )


def test_a_sentence_without_a_key_is_unchanged() -> None:
    assert add_locations("the disk is full: make room", PLACES) == "the disk is full: make room"
    assert add_locations("streams.a.x: is empty", KeyLocations("configuration", {}, {})) == "streams.a.x: is empty"


def test_keys_with_dots_are_found() -> None:
    places = KeyLocations(
        "f.yaml", {("streams",): 1, ("streams", "v1.2"): 2, ("streams", "v1.2", "labels", "a.b"): 3}, {}
    )
    assert add_locations("streams.v1.2.labels.a.b.from: no such column", places).startswith("f.yaml:3: ")
    assert add_locations("streams.v1.2.source.path: is gone", places).startswith("f.yaml:2: ")


def test_key_locations_do_not_affect_equality() -> None:
    assert KeyLocations("a.yaml", {("memory",): 3}, {}) == PLACES
