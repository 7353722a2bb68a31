from __future__ import annotations

from streamd.config.problems import Keys, Places, Problem, dotted, message

LINES: dict[Keys, int] = {(): 1, ("streams",): 2, ("streams", "a"): 3, ("streams", "a", "x"): 4, ("streams", "b"): 6}
PLACES = Places("f.yaml", LINES, {("b", "x"): "a"})


def test_keys_are_written_as_a_path() -> None:
    assert dotted(("streams", "a", "x", 0)) == "streams.a.x[0]"
    assert dotted(()) == ""


def test_a_key_that_is_not_written_has_the_line_of_what_holds_it() -> None:
    assert PLACES.line(("streams", "a", "x", "deep")) == 4
    assert PLACES.line(("streams", "a", "missing")) == 3
    assert PLACES.line(("memory",)) == 1


def test_problems_are_told_in_the_order_of_the_file() -> None:
    problems = [
        Problem(("streams", "b", "y"), "is bad"),
        Problem((), "is odd"),
        Problem(("streams", "a", "x"), "is worse"),
    ]
    assert message(problems, PLACES) == (
        "f.yaml:1: is odd\nf.yaml:4: streams.a.x: is worse\nf.yaml:6: streams.b.y: is bad"
    )


def test_a_copied_problem_is_told_once_where_it_is_written() -> None:
    problems = [Problem(("streams", "a", "x"), "is bad"), Problem(("streams", "b", "x"), "is bad")]
    assert message(problems, PLACES) == "f.yaml:4: streams.a.x: is bad"


def test_a_problem_of_the_copy_alone_keeps_its_own_name() -> None:
    assert message([Problem(("streams", "b", "x"), "is bad")], PLACES) == "f.yaml:4: streams.b.x: is bad"


def test_without_a_file_there_are_no_lines() -> None:
    assert message([Problem(("memory",), "is bad")], Places("configuration", {}, {})) == "configuration: memory: is bad"


def test_ten_problems_are_told_and_the_rest_counted() -> None:
    told = message([Problem((f"k{n}",), "is bad") for n in range(12)], PLACES).splitlines()
    assert len(told) == 11
    assert told[-1] == "and 2 more"
