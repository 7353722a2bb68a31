from __future__ import annotations

import pytest

from streamd.config.load import parse_yaml
from streamd.config.locations import ConfigProblem
from streamd.errors import ConfigError


def test_every_key_and_list_item_has_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  c:\n    - x\n    - {d: 2}\n", "f")
    assert document.data == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
    assert document.lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", "c"): 3,
        ("b", "c", 0): 4,
        ("b", "c", 1): 5,
        ("b", "c", 1, "d"): 5,
    }


def test_json_is_yaml_even_with_tabs() -> None:
    assert parse_yaml('{\n\t"a": [1, 2.5, true, null],\n\t"b": "\\u00e9"\n}', "f").data == {
        "a": [1, 2.5, True, None],
        "b": "é",
    }


def test_words_such_as_yes_and_dates_stay_text() -> None:
    assert parse_yaml("a: yes\nb: none\nc: 2020-99-99\n", "f").data == {"a": "yes", "b": "none", "c": "2020-99-99"}


def test_keys_are_text_as_they_are_written() -> None:
    assert parse_yaml("2026: 1\nno: {1_0: 2, ~: 3, true: 4}\n", "f").data == {
        "2026": 1,
        "no": {"1_0": 2, "~": 3, "true": 4},
    }


def test_an_empty_text_has_no_data() -> None:
    assert parse_yaml("# nothing\n", "f").data is None


def test_anchors_and_merges_are_followed() -> None:
    assert parse_yaml("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n", "f").data == {
        "a": {"b": 1, "c": 2},
        "d": {"b": 1, "c": 3},
    }


def test_every_key_written_twice_is_a_problem_with_both_lines() -> None:
    document = parse_yaml("a: 1\nb: {c: 1, c: 2}\na: 3\n", "f")
    assert set(document.problems) == {
        ConfigProblem(("a",), "is written twice, first at line 1; keep one"),
        ConfigProblem(("b", "c"), "is written twice, first at line 2; keep one"),
    }
    assert document.lines["a",] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: 1\nb: [1\nc: 2\n",
            r"f:3:2: not valid YAML: a comma is missing before this, or the bracket opened at line 2",
        ),
        ("a:\n\tb: 2\n", r"f:2:1: not valid YAML: a tab is here; indent with spaces"),
        ("a: b: c\n", r"f:1:5: not valid YAML: a second colon is in this line"),
        ("a:\n  b: 1\n c: 2\n", r"f:3:2: not valid YAML: this line is indented unlike those it belongs to"),
        ("a: 1\nb: 'x\n\n", r"f:4:1: not valid YAML: the quote opened at line 2 is not closed"),
        ('a: "C:\\data"\n', r"f:1:8: not valid YAML: a backslash is in double quotes"),
        ("a: @b\n", r"f:1:4: not valid YAML: a value that begins with this character needs quotes"),
        ("a: %b\n", r"f:1:4: not valid YAML: a value that begins with this character needs quotes"),
        ("a: 1\nb\n", r"f:3:1: not valid YAML: the key at line 2 needs a colon and a space behind it"),
        ("a: 1\nb: \x01\n", r"f:2: not valid YAML: character 0x1 is not allowed"),
        ("a: !!python/object:os.system x\n", r"f:1:4: not valid YAML: a word that begins with ! is a tag"),
        ("a: *b\n", r"f:1:4: not valid YAML: a value that begins with \* needs quotes"),
        ("a: 1\n---\nb: 1\n", r"f:2:1: not valid YAML: a configuration is one document"),
        (
            "a: 1\n? ]\n",
            r"f:2:3: not valid YAML: expected the node content, but found '\]', while parsing a block node",
        ),
        (
            "a: {<<: 3}\n",
            r"f:1:9: not valid YAML: expected a mapping or list of mappings for merging, but found scalar",
        ),
        ("a: !!int x\n", r"f: not valid YAML: a tag does not fit its value: .*'x'"),
        ("a: !!bool maybe\n", r"f: not valid YAML: a tag does not fit its value: 'maybe'"),
        ("a: " + "9" * 5000, r"f: not valid YAML: a tag does not fit its value: Exceeds the limit"),
        ("a: &x 1\nb: &x 2\n", r"f: found duplicate anchor 'x' .*; give each anchor a name of its own"),
        ("{" * 1000, r"f: nested too deeply"),
    ],
)
def test_what_is_no_yaml_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, "f")
    assert "\n" not in str(caught.value)


def test_aliases_that_repeat_without_end_are_surveyed_once() -> None:
    doubled = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
    assert len(parse_yaml(doubled, "f").lines) < 300
