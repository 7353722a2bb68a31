"""Draws functions of the package at random, for readers who are asked what they do.

    python tools/draw_functions.py --seed 7 --count 15 [--package streamd]

Prints a path and a qualified name a line, and nothing else, in the order drawn: the same for the same seed and code.
Methods are drawn too; functions within functions and names that Python gives, such as `__init__`, are not.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from measure_code import Function, list_functions, read_package

_PACKAGE: Final = Path(__file__).resolve().parent.parent / "streamd"


def list_drawable(package: Path) -> list[str]:
    """`path  qualified name` of each function that may be drawn, sorted."""
    return sorted(
        f"{module.path.relative_to(package.parent).as_posix()}  {function.name}"
        for module in read_package(package).values()
        for function in _outer_functions(list(list_functions(module)))
    )


def _outer_functions(functions: Sequence[Function]) -> list[Function]:
    names = {each.name for each in functions}
    return [each for each in functions if not each.bare_name.startswith("__") and not _is_inner(each.name, names)]


def _is_inner(name: str, functions: Collection[str]) -> bool:
    """Whether any part of a qualified name but the last is a function's."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in functions for end in range(1, len(parts)))


def draw_functions(package: Path, seed: int, count: int) -> list[str]:
    """So many different functions, or all where there are fewer."""
    functions = list_drawable(package)
    return random.Random(seed).sample(functions, min(count, len(functions)))  # noqa: S311 - a seed is wanted, no secret


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draws functions of a package by path and qualified name.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--package", type=Path, default=_PACKAGE, metavar="FOLDER")
    options = parser.parse_args(arguments)
    for line in draw_functions(options.package.resolve(), options.seed, options.count):
        print(line)


if __name__ == "__main__":
    main()
