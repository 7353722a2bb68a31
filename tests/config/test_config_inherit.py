from __future__ import annotations

from streamd.config.inherit import resolve_streams
from streamd.config.locations import ConfigProblem


def test_like_copies_every_key_not_given_and_nothing_deeper() -> None:
    streams = resolve_streams({"a": {"x": 1, "y": {"deep": 1}}, "b": {"like": "a", "y": {"other": 2}}})
    assert streams.raw == {"a": {"x": 1, "y": {"deep": 1}, "name": "a"}, "b": {"x": 1, "y": {"other": 2}, "name": "b"}}
    assert streams.problems == ()


def test_a_chain_of_likes_takes_the_nearest_value_and_knows_who_wrote_it() -> None:
    streams = resolve_streams({"c": {"like": "b"}, "b": {"like": "a", "y": 2}, "a": {"x": 1, "y": 1}})
    assert streams.raw["c"] == {"x": 1, "y": 2, "name": "c"}
    assert streams.copied == {("c", "x"): "a", ("c", "y"): "b", ("b", "x"): "a"}


def test_a_circle_is_told_once_and_by_name() -> None:
    streams = resolve_streams({"d": {"like": "b"}, "b": {"like": "c"}, "c": {"like": "b"}})
    assert streams.raw == {}
    assert streams.problems == (
        ConfigProblem(("streams", "b", "like"), "goes in a circle: b -> c -> b; take a like away"),
    )


def test_a_stream_like_itself_is_a_circle() -> None:
    assert resolve_streams({"a": {"like": "a"}}).problems == (
        ConfigProblem(("streams", "a", "like"), "goes in a circle: a -> a; take a like away"),
    )


def test_an_unknown_like_names_the_near_stream() -> None:
    streams = resolve_streams({"train": {}, "val": {"like": "trian"}, "other": {"like": "val"}})
    sentence = "found 'trian', which is no stream of this file; did you mean 'train'?"
    assert streams.problems == (ConfigProblem(("streams", "val", "like"), sentence),)
    assert list(streams.raw) == ["train"]


def test_an_unknown_like_near_nothing_lists_the_streams() -> None:
    (problem,) = resolve_streams({"train": {}, "val": {"like": 7}}).problems
    assert problem.sentence == "found 7, which is no stream of this file; use one of train"


def test_names_out_of_the_alphabet_are_refused() -> None:
    streams = resolve_streams({"a b": {}, "x" * 65: {}, "": {}, 5: {}, "ok.A-1_": {}})
    assert list(streams.raw) == ["ok.A-1_"]
    assert len(streams.problems) == 4
    assert streams.problems[-1] == ConfigProblem(("streams", "5"), "a stream's name is text, found 5; put it in quotes")


def test_a_stream_does_not_say_its_own_name() -> None:
    (problem,) = resolve_streams({"a": {"name": "b"}}).problems
    assert problem == ConfigProblem(("streams", "a", "name"), "unknown key; a stream's name is the key above it")


def test_no_streams_are_a_problem_that_shows_one() -> None:
    nothings: list[object] = [None, {}]
    for nothing in nothings:
        (problem,) = resolve_streams(nothing).problems
        assert problem.sentence.startswith("there are none; add at least one: streams: {train: ")
    (problem,) = resolve_streams([1]).problems
    assert problem.sentence.startswith("found [1], a mapping of names is needed; ")
