"""Guesses the type of a column of texts as a label: category, int or float; or why it is no label."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamd.core.text import format_count
from streamd.dataset.labels.cells import Texts, find_empty_texts
from streamd.dataset.labels.encode import MISSING_WORDS, NUMBER

MAX_CLASSES: Final = 1000  # a column with more different texts holds names or remarks
_ROW_NUMBERS: Final = "numbers the rows"
_WHOLE: Final = r"^[+-]?[0-9]{1,18}$"
_CODE: Final = r"^0[0-9]+$"  # 007 is a name and not the number 7
# Whole numbers in a column with such a name are classes; in any other column they are quantities.
_CLASS_NAME: Final = re.compile(
    r"(^|[_ .-])(label|class|category|target|type|kind|species|breed|cls|y)(s|es|[_ "
    r".-]?(id|no|index|idx|number|code))?$"
)
# The index of pandas, which numbers rows and is saved as a column, and how it and R name columns without a name.
_INDEX_NAME: Final = re.compile(r"__index_level_[0-9]+__|Unnamed: ?[0-9]+.*|\.\.\.[0-9]+")
_QUOTED_LIST: Final = r"^(?:[\[({]\s*['\"].*[\])}]|\[\s*\])?$"
_ROW_NAME: Final = re.compile(r"^(|id|idx|index|row|no|nr|number|unnamed.*)$|[_ ]id$")


@dataclass(frozen=True, slots=True)
class LabelGuess:
    """The `type` of a label, or None and why the column is `left_out`; a `note` about what was taken for what."""

    type: str | None
    left_out: str = ""
    note: str = ""


def guess_label_type(name: str, texts: Texts, *, is_chosen: bool = False) -> LabelGuess:
    """Returns the type of the column `name`, judged by all of its cells; an empty text is a missing value.

    `is_chosen`: somebody has named it as a label, so numbers in the order of the rows are one, too.
    """
    rows = len(texts)
    if _INDEX_NAME.fullmatch(name):
        return LabelGuess(None, "the index of a data frame, which numbers its rows")
    gaps = _count_true(find_empty_texts(texts))
    if gaps < rows and _count_true(pc.match_substring_regex(texts, _QUOTED_LIST)) == rows:
        return LabelGuess("tags")
    if gaps:
        return LabelGuess(None, "empty" if gaps == rows else f"{format_count(gaps, 'row')} of {rows:,} have no value")
    levels = int(pc.count_distinct(texts).as_py())
    if levels == 1 and rows > 1:
        return LabelGuess(None, f"{texts[0].as_py()!r} in every row")
    numbers = _count_true(pc.match_substring_regex(texts, NUMBER))
    words = pc.is_in(pc.utf8_lower(texts), pa.array(sorted(MISSING_WORDS), texts.type))
    if 0 < numbers < rows and numbers + _count_true(words) == rows:
        return _describe_no_numbers(texts, numbers)
    if numbers < rows:
        return _guess_type_of_words(texts, levels, numbers)
    if _count_true(pc.match_substring_regex(texts, _WHOLE)) < rows:
        return LabelGuess("float")
    guess = _guess_type_of_whole_numbers(name, texts, levels)
    return LabelGuess("int") if guess.left_out == _ROW_NUMBERS and is_chosen else guess


def _guess_type_of_words(texts: Texts, levels: int, numbers: int) -> LabelGuess:
    rows = len(texts)
    if levels <= min(MAX_CLASSES, max(2, rows // 2)):
        return LabelGuess("category")
    if numbers > rows // 2:
        return _describe_no_numbers(texts, numbers)
    return LabelGuess(None, f"{levels:,} different texts in {rows:,} rows")


def _describe_no_numbers(texts: Texts, numbers: int) -> LabelGuess:
    odd = texts.filter(pc.invert(pc.match_substring_regex(texts, NUMBER)))[0].as_py()
    return LabelGuess(None, f"no number in {format_count(len(texts) - numbers, 'row')}, such as {odd[:40]!r}")


def _guess_type_of_whole_numbers(name: str, texts: Texts, levels: int) -> LabelGuess:
    rows = len(texts)
    if _count_true(pc.match_substring_regex(texts, _CODE)):
        guess = _guess_type_of_words(texts, levels, 0)
        return LabelGuess(guess.type, guess.left_out, "has leading zeros, so its numbers are taken as texts")
    if _CLASS_NAME.search(name.casefold()) and levels <= MAX_CLASSES:
        return LabelGuess("category")
    if levels == rows and rows > 1 and (_ROW_NAME.search(name.casefold()) or _counts_rows(texts)):
        return LabelGuess(None, _ROW_NUMBERS)
    return LabelGuess("int")


def _counts_rows(texts: Texts) -> bool:
    numbers = pc.replace_substring_regex(texts, r"^\+", "").cast(pa.int64()).to_numpy()
    return bool((np.diff(numbers) == 1).all())


def _count_true(mask: Any) -> int:
    return int(pc.sum(mask).as_py() or 0)
