from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from streamd.config.fields import DataGlob, DataPath, Endpoint

BASE = {"base": Path("/conf")}


@pytest.mark.parametrize(
    ("written", "path"), [("a/b", "/conf/a/b"), ("../a", "/conf/../a"), ("/a", "/a"), (Path("a"), "/conf/a")]
)
def test_a_relative_path_starts_at_the_folder_of_the_configuration(written: object, path: str) -> None:
    assert TypeAdapter(DataPath).validate_python(written, context=BASE) == Path(path)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert TypeAdapter(DataPath).validate_python("~/a", context=BASE) == Path("/home/u/a")


def test_wildcards_are_kept() -> None:
    assert TypeAdapter(DataGlob).validate_python("shards/[0-9]*.tar", context=BASE) == "/conf/shards/[0-9]*.tar"


@pytest.mark.parametrize(
    ("written", "endpoint"),
    [("ipc:///run/s", "ipc:///run/s"), ("ipc://s", "ipc:///conf/s"), ("tcp://[::1]:5555", "tcp://[::1]:5555")],
)
def test_an_endpoint_is_a_socket_file_or_an_address(written: str, endpoint: str) -> None:
    assert TypeAdapter(Endpoint).validate_python(written, context=BASE) == endpoint


@pytest.mark.parametrize(
    "written", ["", "ipc://", "ipc://@abstract", "ipc://*", "tcp://host", "tcp://a:99999", "inproc://a", "/run/s", 5]
)
def test_any_other_endpoint_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match=r"use ipc:///|an endpoint is ipc:///"):
        TypeAdapter(Endpoint).validate_python(written, context=BASE)


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
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Endpoint).validate_python(written, context=BASE)
    assert hint in str(caught.value)
