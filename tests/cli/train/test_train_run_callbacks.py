"""Callbacks that `--callback` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stream_fake import ANGLE, make_spec
from support.transform_programs import forgotten

from streamd.cli.train import run
from streamd.cli.train.run import load_callback
from streamd.errors import ConfigError

SOURCE = """
from streamd.cli.train import run
Callback = run.load_keras().callbacks.Callback

class Counting(Callback):
    pass

class Needy(Callback):
    def __init__(self, what):
        pass

class Other:
    def __init__(self, spec):
        pass

def of(spec):
    made = Counting()
    made.samples = spec.samples
    return made

def nothing(spec):
    pass

def failing(spec):
    return spec.nothing
"""


class Callback:
    """Keras's own takes seconds to import, and the rule asks for the class alone."""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(run, "load_keras", lambda: SimpleNamespace(callbacks=SimpleNamespace(Callback=Callback)))
    (tmp_path / "mycallbacks.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    with forgotten(tmp_path):
        yield


def load(*names: str) -> list[object]:
    return [load_callback(f"mycallbacks:{name}")(make_spec(ANGLE)) for name in names]


def test_a_callback_class_is_instantiated_and_a_function_gets_the_spec() -> None:
    made, told = load("Counting", "of")
    assert isinstance(made, Callback)
    assert vars(told) == {"samples": 10}


@pytest.mark.parametrize(("name", "found"), [("nothing", "NoneType"), ("Other", "Other")])
def test_an_object_that_is_not_a_callback_is_refused(name: str, found: str) -> None:
    with pytest.raises(ConfigError, match=rf"mycallbacks:{name} must return a keras.*Callback, but returned {found}"):
        load(name)


@pytest.mark.parametrize(("name", "why"), [("failing", "AttributeError.*line 25"), ("Needy", "TypeError: .*'what'")])
def test_a_callback_that_cannot_be_created_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"mycallbacks:{name} failed: {why}"):
        load(name)


def test_a_callback_that_is_not_module_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="--callback must be module:function, such as mycallbacks:patience"):
        load_callback("mycallbacks")
