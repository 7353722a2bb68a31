from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from streamd.config.errors import explain_errors
from streamd.config.fields import (
    BatchSize,
    Classes,
    CropRatio,
    DataGlob,
    DataPath,
    Endpoint,
    Fraction,
    From,
    HostPort,
    Levels,
    Memory,
    NodeCount,
    PixelRange,
    Remainder,
    ScalarValue,
    Size,
    Text,
    Transform,
    Workers,
)
from streamd.config.schema import ListenKey, PaceKey, WeightsKey
from streamd.config.schema_sections import PaceConfig, WeightsConfig

BASE = {"base": Path("/conf")}


def read(kind: Any, written: object) -> object:
    return TypeAdapter(kind).validate_python(written, context=BASE)


def refusal(kind: Any, written: object) -> str:
    with pytest.raises(ValidationError) as caught:
        read(kind, written)
    return "\n".join(problem.sentence for problem in explain_errors(caught.value.errors(include_url=False)))


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (BatchSize, 1, 1),
        (BatchSize, 65536, 65536),
        (Fraction, 1, 1),
        (Fraction, 0.25, 0.25),
        (Memory, "1MiB", 1 << 20),
        (HostPort, "[::1]:0", "[::1]:0"),
        (HostPort, "*:65535", "*:65535"),
        (Size, [1, 16384], (1, 16384)),
        (Size, "stored", "stored"),
        (Levels, [0, 255.0], (0, 255.0)),
        (Levels, [0, 0, 0], (0, 0, 0)),
        (Levels, [1, 1, 1], (1, 1, 1)),
        (CropRatio, [0.01, 100], (0.01, 100)),
        (CropRatio, [1, 1], (1, 1)),
        (PixelRange, [0, 1], (0.0, 1.0)),
        (PixelRange, [-0.5, 65535], (-0.5, 65535.0)),
        (Classes, ["cat", 0], ("cat", 0)),
        (From, ["a", "b"], ("a", "b")),
        (From, None, None),
        (WeightsKey, "w", WeightsConfig.model_validate({"from": "w"})),
        (WeightsKey, {"from": "w"}, WeightsConfig.model_validate({"from": "w"})),
        (WeightsKey, None, None),
        (Transform, "a.b:f", "a.b:f"),
        (PaceKey, "free", PaceConfig()),
        (Remainder, "pad", "pad"),
        (Remainder, True, True),
        (Workers, "auto", "auto"),
        (Workers, 1024, 1024),
        (NodeCount, 128, 128),
        (ListenKey, "ipc:///a", ("ipc:///a",)),
        (ListenKey, None, None),
    ],
)
def test_an_allowed_value_is_read(kind: Any, written: object, value: object) -> None:
    assert read(kind, written) == value


REFUSED: list[tuple[Any, tuple[object, ...], str]] = [
    (BatchSize, (0, 65537, True, 2.0, "3", None), "use a whole number from 1 to 65536"),
    (Fraction, (0, 1.01, -0.5, True, "0.5", float("nan")), "use a number above 0, up to 1"),
    (Text, ("", "a\0b", 3, None), "use text that is not empty"),
    (Text, ("a\udcff",), "and can be written in UTF-8"),
    (DataPath, ("", "a\0b", 3, None), "use text that is not empty"),
    (ScalarValue, ([1],), "not in this version; use text, a number, true or false"),
    (ScalarValue, (float("inf"),), "found inf; use text, a number, true or false"),
    (Memory, ("1023KiB",), "1023 KiB is too little; use 1MiB or more"),
    (HostPort, ("9191", "a:", "a:65536", "a b:1", 9191), "use address:port"),
    (Size, (128, [1], [0, 1], [1, 16385], [1.0, 1], "x", {1, 2}), "use [height, width], each from 1 to 16384 pixels"),
    (Levels, ([], 3, [True], ["1"], [float("inf")], {1}), "each from 0 to 255"),
    (
        PixelRange,
        (1, [0], [0, 1, 2], [0, True], ["0", 1], [0, float("inf")], [float("nan"), 1], None),
        "[low, high], the numbers for black and for white",
    ),
    (PixelRange, ([1, 0], [1, 1]), "the number for black comes first"),
    (
        CropRatio,
        (1, [1], [1, 1, 1], [2, 1], [0.001, 1], [1, 100.1], [True, 2], ["1", 2], None),
        "use [least, most], both from 0.01 to 100",
    ),
    (Classes, ([], "cat", [1.5], [True], {"cat", "dog"}), "a list of names or whole numbers"),
    (Classes, (["a", "b", "a"],), "class 'a' is listed twice"),
    (From, ("", 3, [], ["a", 1], ["a", ""]), "use a column"),
    (WeightsKey, (3, True, ["w"], []), "use one column"),
    (Transform, ("f", "a:b:c", "a:1", "a.py:f()", 3), "use module:function"),
    (PaceKey, ("fast", None, {}, 10), "use free or {lockstep: 10s}"),
    (Remainder, ("drop", 1, None), "use true, false or pad"),
    (Workers, (0, 1025, "two", True, None), "use auto or a whole number from 1 to 1024"),
    (NodeCount, (0, 129, "all"), "use auto or a whole number from 1 to 128"),
    (ListenKey, ([], 5, {}), "use an endpoint"),
]


@pytest.mark.parametrize(
    ("kind", "written", "allowed"), [(kind, value, allowed) for kind, values, allowed in REFUSED for value in values]
)
def test_a_wrong_value_is_refused_with_what_is_allowed(kind: Any, written: object, allowed: str) -> None:
    told = refusal(kind, written)
    assert allowed in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("written", "path"), [("a/b", "/conf/a/b"), ("../a", "/conf/../a"), ("/a", "/a"), (Path("a"), "/conf/a")]
)
def test_a_relative_path_starts_at_the_folder_of_the_configuration(written: object, path: str) -> None:
    assert read(DataPath, written) == Path(path)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert read(DataPath, "~/a") == Path("/home/u/a")


def test_wildcards_are_kept() -> None:
    assert read(DataGlob, "shards/[0-9]*.tar") == "/conf/shards/[0-9]*.tar"


@pytest.mark.parametrize(
    ("written", "endpoint"),
    [("ipc:///run/s", "ipc:///run/s"), ("ipc://s", "ipc:///conf/s"), ("tcp://[::1]:5555", "tcp://[::1]:5555")],
)
def test_an_endpoint_is_a_socket_file_or_an_address(written: str, endpoint: str) -> None:
    assert read(Endpoint, written) == endpoint


@pytest.mark.parametrize(
    "written", ["", "ipc://", "ipc://@abstract", "ipc://*", "tcp://host", "tcp://a:99999", "inproc://a", "/run/s", 5]
)
def test_any_other_endpoint_is_refused(written: object) -> None:
    assert re.search(r"use ipc:///|an endpoint is ipc:///", refusal(Endpoint, written))


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("/run/s", "did you mean 'ipc:///run/s'?"),
        ("unix:///run/s", "did you mean 'ipc:///run/s'?"),
        ("ipc:/run/s", "did you mean 'ipc:///run/s'?"),
        ("localhost:5555", "did you mean 'tcp://localhost:5555'?"),
        ("tcp://localhost", "its port is missing or too large"),
        ("ipc:///run/streamd/", "name a socket in it, such as ipc:///run/streamd/streamd.sock"),
        (
            "ipc://" + "x" * 120,
            "a socket's path can have at most 104 bytes, but this one has 126: choose a shorter one",
        ),
    ],
)
def test_an_endpoint_with_a_mistake_is_refused_with_the_right_form(written: str, hint: str) -> None:
    assert hint in refusal(Endpoint, written)
