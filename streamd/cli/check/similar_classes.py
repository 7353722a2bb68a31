"""Finds classes that are probably one: their names differ only in case, blanks, or the encoding of accents. Pure.

Names of one letter are ignored, since a data set of letters may have both a and A.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamd.core.text import format_count

_MIN_LETTERS: Final = 2


@dataclass(frozen=True, slots=True)
class ClassUse:
    """A class, the number of its samples in all streams, and one of these, named "stream: file"."""

    name: str
    samples: int
    example: str


@dataclass(frozen=True, slots=True)
class SimilarClasses:
    """Classes of `label` that are probably one."""

    label: str
    classes: list[ClassUse]


def group_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Groups similar names; returns the groups of at least two, in the order of `names`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        alike = _tidy_blanks(_compose_letters(name)).casefold()
        if len(alike) >= _MIN_LETTERS:
            groups.setdefault(alike, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def format_similar_classes(found: SimilarClasses) -> str:
    """Formats a sentence about similar classes, with the remedy."""
    uses = [f"{each.name!r} ({format_count(each.samples, 'sample')}, such as {each.example})" for each in found.classes]
    return (
        f"{found.label}: {' and '.join(uses)} differ only in {_describe_difference(found)}, and are learned as "
        f"{len(uses)} classes; give them one name in the data, or list each in labels.{found.label}.classes, if that "
        "is meant"
    )


def _describe_difference(found: SimilarClasses) -> str:
    names = [each.name for each in found.classes]
    for difference, normalize in (
        ("upper and lower case", str.casefold),
        ("blanks", _tidy_blanks),
        ("how their letters are encoded", _compose_letters),
    ):
        if len(set(map(normalize, names))) == 1:
            return difference
    return "case, blanks or how their letters are encoded"


def _tidy_blanks(name: str) -> str:
    return " ".join(name.split())


def _compose_letters(name: str) -> str:
    return unicodedata.normalize("NFC", name)
