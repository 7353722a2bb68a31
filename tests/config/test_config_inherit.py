from __future__ import annotations

import pytest

from streamd.config.load import resolve_streams
from streamd.config.locations import ConfigProblem


def test_like_copies_every_key_not_given_and_nothing_deeper() -> None:
    streams = resolve_streams({"a": {"x": 1, "y": {"deep": 1}}, "b": {"like": "a", "y": {"other": 2}}})
    assert streams.raw == {"a": {"x": 1, "y": {"deep": 1}, "name": "a"}, "b": {"x": 1, "y": {"other": 2}, "name": "b"}}
    assert streams.problems == ()


def test_a_chain_of_likes_takes_the_nearest_value_and_records_its_stream() -> None:
    streams = resolve_streams({"c": {"like": "b"}, "b": {"like": "a", "y": 2}, "a": {"x": 1, "y": 1}})
    assert streams.raw["c"] == {"x": 1, "y": 2, "name": "c"}
    assert streams.copied == {("c", "x"): "a", ("c", "y"): "b", ("b", "x"): "a"}


@pytest.mark.parametrize(
    ("streams", "where", "sentence", "sound"),
    [
        pytest.param(
            {"d": {"like": "b"}, "b": {"like": "c"}, "c": {"like": "b"}},
            "b",
            "copies itself in a circle: b -> c -> b; remove like: from one of these streams",
            [],
            id="a circle is reported once",
        ),
        pytest.param(
            {"a": {"like": "a"}},
            "a",
            "copies itself in a circle: a -> a; remove its key like",
            [],
            id="a stream like itself",
        ),
        pytest.param(
            {"train": {}, "val": {"like": "trian"}, "other": {"like": "val"}},
            "val",
            "found 'trian', which is not a stream in this file; did you mean 'train'?",
            ["train"],
            id="an unknown stream near another",
        ),
        pytest.param(
            {"train": {}, "val": {"like": 7}},
            "val",
            "found 7, which is not a stream in this file; use one of train",
            ["train"],
            id="an unknown stream near none",
        ),
    ],
)
def test_an_unresolvable_like_is_reported_once(
    streams: dict[str, object], where: str, sentence: str, sound: list[str]
) -> None:
    resolved = resolve_streams(streams)
    assert resolved.problems == (ConfigProblem(("streams", where, "like"), sentence),)
    assert list(resolved.raw) == sound


def test_stream_names_with_other_characters_are_refused() -> None:
    streams = resolve_streams({"a b": {}, "x" * 65: {}, "": {}, 5: {}, "ok.A-1_": {}})
    assert list(streams.raw) == ["ok.A-1_"]
    assert len(streams.problems) == 4
    assert streams.problems[-1] == ConfigProblem(("streams", "5"), "a stream's name is text, found 5; put it in quotes")


def test_the_key_name_in_a_stream_is_refused() -> None:
    (problem,) = resolve_streams({"a": {"name": "b"}}).problems
    assert problem == ConfigProblem(("streams", "a", "name"), "unknown key; a stream's name is the key above it")


def test_missing_streams_are_reported_with_an_example() -> None:
    nothings: list[object] = [None, {}]
    for nothing in nothings:
        (problem,) = resolve_streams(nothing).problems
        assert problem.sentence.startswith("there are none; add at least one: streams: {train: ")
    (problem,) = resolve_streams([1]).problems
    assert problem.sentence.startswith("found [1]; a mapping of names is needed; ")
