from __future__ import annotations

from collections.abc import Callable

import pytest

from streamd.config import hints
from streamd.config.hints import KEY_EXAMPLES, MISSING_KEY_HINTS
from streamd.config.schema import Config, StreamConfig
from streamd.config.schema_sections import SECTION_MODELS


@pytest.mark.parametrize(
    ("value", "choices", "hint"),
    [
        ("gray", ["RGB", "L"], "; did you mean 'L'?"),
        ("rgb", ["RGB", "L"], "; did you mean 'RGB'?"),
        (False, ["full", "none"], "; did you mean 'none'?"),
        (None, ["full", "none"], "; did you mean 'none'?"),
        ("double", ["int", "float"], "; did you mean 'float'?"),
        ("double", ["full", "none"], ""),
        (3, ["int", "float"], ""),
        ([1], ["int", "float"], ""),
    ],
)
def test_a_word_of_other_tools_suggests_ours(value: object, choices: list[str], hint: str) -> None:
    assert hints.suggest_choice(value, choices) == hint


@pytest.mark.parametrize(
    ("suggest", "value", "hint"),
    [
        (hints.suggest_whole_number, 1e3, "; did you mean 1000?"),
        (hints.suggest_whole_number, "32", "; did you mean 32, without quotes?"),
        *((hints.suggest_whole_number, value, "") for value in (1.5, "x", None)),
        (hints.suggest_fraction, 20, "; did you mean 0.2?"),
        (hints.suggest_fraction, "5%", "; did you mean 0.05?"),
        (hints.suggest_fraction, "0.1", "; did you mean 0.1?"),
        *((hints.suggest_fraction, value, "") for value in (-1, 500, 1.5, float("nan"), True, [0.8, 0.2], "some")),
        (hints.suggest_boolean, "yes", "; did you mean true?"),
        (hints.suggest_boolean, "Off", "; did you mean false?"),
        (hints.suggest_boolean, 1, ""),
    ],
)
def test_a_value_in_another_form_suggests_ours(suggest: Callable[[object], str], value: object, hint: str) -> None:
    assert suggest(value) == hint


def test_key_examples_belong_to_existing_keys() -> None:
    keys = {*Config.model_fields, *StreamConfig.model_fields, *SECTION_MODELS, "where"}
    assert set(KEY_EXAMPLES) <= keys
    assert {"streams", "source"} <= set(MISSING_KEY_HINTS)


def test_foreign_keys_do_not_include_known_keys() -> None:
    assert not set(hints.FOREIGN_KEYS) & {*Config.model_fields, *StreamConfig.model_fields}
