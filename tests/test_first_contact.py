"""What somebody sees who imports streamd and asks Python about it."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import streamd

HEAVY = {"numpy", "zmq", "msgspec", "pydantic"}


def test_dir_shows_what_users_use_and_nothing_else() -> None:
    shown = set(dir(streamd))
    assert shown == {*streamd.__all__, "__doc__", "__version__"}
    assert shown >= {"Batch", "Client", "Stream", "StreamdError", "connect", "headroom", "load_image", "local"}
    assert all(hasattr(streamd, name) for name in shown)


def test_asking_what_there_is_loads_none_of_it() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", "import streamd, sys; dir(streamd); print(*sys.modules)"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert HEAVY.isdisjoint(asked.stdout.split())


def test_help_begins_with_how_streamd_is_used() -> None:
    said = pydoc.plain(pydoc.render_doc(streamd))
    first = said[: said.index("PACKAGE CONTENTS")]
    for taught in ("streamd.connect()", 'client.subscribe("train"', "batch.images", "README.md", "ARCHITECTURE.md"):
        assert taught in first
    for public in streamd.__all__:
        assert public in said


def test_help_of_a_function_names_each_of_its_arguments() -> None:
    for function in (streamd.connect, streamd.Client.subscribe):
        arguments = set(inspect.signature(function).parameters) - {"self"}
        text = inspect.getdoc(function) or ""
        explained = {name.strip() for line in text.splitlines() for name in line.partition(":")[0].split(",")}
        assert arguments - {"stream"} <= explained
        assert "Raises" in text


def test_what_streamd_does_not_have_is_no_attribute_of_it() -> None:
    assert not hasattr(streamd, "subscribe")
