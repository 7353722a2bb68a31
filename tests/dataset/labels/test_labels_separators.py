"""What separates cells: told by header and first rows alike, the suffix first, and unclear where two marks fit."""

from __future__ import annotations

import pytest

from streamd.dataset.labels.separators import UnclearSeparatorError, choose_separator


@pytest.mark.parametrize(
    ("head", "usual", "separator"),
    [
        ("path,angle\na.jpg,0.5\n", ",", ","),
        ("path;angle\na.jpg;0,5\nb.jpg;1\n", ",", ";"),
        ("path\tangle\na.jpg\t0,5\n", ",", "\t"),
        ("path|angle\na b.jpg|1\n", ",", "|"),
        ("path,angle\na.jpg,0.5\n", "\t", ","),
        ("path;x,y\na.jpg;1\nb.jpg;2\n", ",", ";"),  # the comma belongs to a name
        ('"path;x",y\na.jpg,1\n', ",", ","),  # quotes hide a mark
        ('path;"a\nb"\n\nx.jpg;1\n', ",", ";"),
        ("path\na,b.jpg\n", ",", ","),  # one column
        ("path,tags\na.jpg,x;y\nb.jpg,x\n", ",", ","),
        ("path;tags;angle\na.jpg;x\nb.jpg;x;1\n", ",", ";"),  # a row that lacks a cell
        ("path,a;b\nx,1;2\n", ",", ","),  # both fit: what the suffix says
        ("", ",", ","),
    ],
)
def test_the_separator_is_the_one_that_header_and_rows_agree_on(head: str, usual: str, separator: str) -> None:
    assert choose_separator(head, usual) == separator


def test_two_marks_that_fit_equally_are_not_chosen_between() -> None:
    with pytest.raises(UnclearSeparatorError) as caught:
        choose_separator("path;a|b\nx;1|2\n", ",")
    assert caught.value.marks == [";", "|"]
