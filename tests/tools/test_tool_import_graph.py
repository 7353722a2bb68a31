"""Rooms, floors and arrows of small graphs, with cycles and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_graph import ImportGraph, main, read_graph


def graph_of(arrows: dict[str, str]) -> ImportGraph:
    return ImportGraph({room: frozenset(others) for room, others in arrows.items()})


def test_a_floor_is_the_longest_way_down() -> None:
    graph = graph_of({"a": "bd", "b": "c", "c": "d", "d": ""})
    assert graph.number_floors() == {"a": 4, "b": 3, "c": 2, "d": 1}
    assert (graph.floor_count, graph.arrow_count, graph.rooms_in_cycles) == (4, 4, [])


def test_a_cycle_is_named_and_what_imports_it_stands_above() -> None:
    graph = graph_of({"a": "b", "b": "c", "c": "bd", "d": ""})
    assert graph.rooms_in_cycles == ["b", "c"]
    assert graph.number_floors()["a"] > graph.number_floors()["b"] >= graph.number_floors()["d"]


def test_a_package_without_rooms_has_no_floors() -> None:
    assert graph_of({}).floor_count == 0


def test_folders_and_root_modules_are_rooms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "__init__": "from shop.sale import sell",
        "sale/__init__": "",
        "sale/sell": "import shop.errors\nfrom shop.sale import price",
        "sale/price": "from ..core import money",
        "core/__init__": "",
        "core/money": "from shop.errors import Broke",
        "errors": "",
    }
    for name, text in files.items():
        path = tmp_path / "shop" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_graph(tmp_path / "shop").arrows == {"sale": {"core", "errors"}, "core": {"errors"}, "errors": set()}
    main([str(tmp_path / "shop")])
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'shop'}: 3 rooms, 3 floors, 3 arrows; in cycles: none",
        "   3  sale",
        "   2  core",
        "   1  errors",
    ]
