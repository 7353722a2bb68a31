"""The import graph of a package, room by room: python tools/import_graph.py FOLDER ...

A room is a folder or a module right below the package's folder. An arrow is one room that imports another, whatever the
number of imports. A room's floor is one more than the highest floor that it imports; the package's floors are the
longest way down. Rooms that import each other, directly or by way of others, stand in a cycle.

Reads files as syntax trees; imports and runs nothing. The package's own `__init__` is no room, since it hands on names.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure_code import Module, list_imports, read_package


@dataclass(frozen=True, slots=True)
class ImportGraph:
    """`arrows` has one entry a room: the rooms that it imports."""

    arrows: Mapping[str, frozenset[str]]

    @property
    def arrow_count(self) -> int:
        return sum(map(len, self.arrows.values()))

    @property
    def rooms_in_cycles(self) -> list[str]:
        return sorted(room for room in self.arrows if room in self._reachable_from(room))

    @property
    def floor_count(self) -> int:
        return max(self.number_floors().values(), default=0)

    def number_floors(self) -> dict[str, int]:
        """Each room's floor, from 1. Arrows within a cycle count nothing, so that it has an end."""
        reachable = {room: self._reachable_from(room) for room in self.arrows}
        floors: dict[str, int] = {}
        for room in sorted(self.arrows, key=lambda each: len(reachable[each] | {each})):  # least first
            below = [other for other in self.arrows[room] if room not in reachable[other]]
            floors[room] = 1 + max((floors[other] for other in below), default=0)
        return floors

    def _reachable_from(self, room: str) -> set[str]:
        found: set[str] = set()
        waiting = [room]
        while waiting:
            new = self.arrows[waiting.pop()] - found
            found |= new
            waiting += new
        return found


def read_graph(folder: Path) -> ImportGraph:
    """The graph of the package in a folder."""
    modules = read_package(folder)
    arrows: dict[str, set[str]] = {}
    for module in modules.values():
        if (room := _room_of(module.name)) is not None:
            arrows.setdefault(room, set()).update(_imported_rooms(module, modules) - {room})
    return ImportGraph({room: frozenset(others) for room, others in arrows.items()})


def _room_of(module: str) -> str | None:
    """The room of a dotted name below the package; None for the package itself."""
    return module.split(".")[1] if "." in module else None


def _imported_rooms(module: Module, modules: Mapping[str, Module]) -> set[str]:
    rooms = {_room_of(name) for name in list_imports(module) if name in modules}
    return {room for room in rooms if room is not None}


def render_graph(name: str, graph: ImportGraph) -> str:
    """The figures of a graph and its rooms, the highest floor first."""
    floors = graph.number_floors()
    sums = f"{len(graph.arrows)} rooms, {graph.floor_count} floors, {graph.arrow_count} arrows"
    lines = [
        f"{name}: {sums}; in cycles: {', '.join(graph.rooms_in_cycles) or 'none'}",
        *(
            f"  {floor:2}  {', '.join(sorted(room for room, at in floors.items() if at == floor))}"
            for floor in range(graph.floor_count, 0, -1)
        ),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rooms, floors and arrows of a package's imports.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    for folder in parser.parse_args(arguments).folders:
        print(render_graph(str(folder), read_graph(folder)))


if __name__ == "__main__":
    main()
