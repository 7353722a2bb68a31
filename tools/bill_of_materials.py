"""The bill of materials (CycloneDX) of the locked packages: written from requirements/, and checked against it.

requirements/packages.toml says of each locked package why it is here and under which licence. Everything below reads
files of this repository only, so it gives the same answer without a network.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
BILL: Final = Path("requirements/bill-of-materials.cdx.json")
REASONS: Final = Path("requirements/packages.toml")

_REQUIRED: Final = re.compile(r"[A-Za-z0-9._-]+")  # the name that a requirement begins with
_LOCKED: Final = re.compile(r"^([a-z0-9.-]+)==([^\s;]+)", re.MULTILINE)
_EXTRAS: Final = ("serve", "train", "hdf5", "lmdb", "tiff", "ray")  # that scripts/lock locks, and that users install

# Permissive, or, as the MPL is, binding for changes of that package's own files alone: streamd is MIT and ships none.
LICENCES: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "CC0-1.0", "ISC", "LLVM-exception", "MIT",
        "MIT-CMU", "MPL-2.0", "OFL-1.1", "OLDAP-2.8", "PSF-2.0", "Zlib",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of the locks; `reason` is empty unless pyproject.toml names it."""

    name: str
    version: str
    licence: str
    reason: str
    needed_by: tuple[str, ...]


def read_locks(root: Path) -> dict[str, str]:
    """Returns the version of each package in the locks of a checkout."""
    locks = sorted((root / "requirements").glob("*.txt"))
    return dict(sorted(pin for lock in locks for pin in _LOCKED.findall(lock.read_text(encoding="utf-8"))))


def read_reasons(root: Path) -> dict[str, dict[str, Any]]:
    """Returns the tables of packages.toml by package."""
    return tomllib.loads((root / REASONS).read_text(encoding="utf-8"))


def read_packages(root: Path) -> list[LockedPackage]:
    """Returns the locked packages that have an entry in packages.toml, by name."""
    reasons = read_reasons(root)
    return [
        LockedPackage(
            name,
            version,
            reasons[name].get("licence", ""),
            reasons[name].get("reason", ""),
            tuple(reasons[name].get("needed_by", ())),
        )
        for name, version in read_locks(root).items()
        if name in reasons
    ]


def find_direct_packages(root: Path) -> dict[str, set[str]]:
    """Returns the packages that pyproject.toml names, by what asks for them: client, an extra, dev, bench or build."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    groups: Mapping[str, Sequence[str]] = {
        "client": project["dependencies"],
        **{extra: project["optional-dependencies"][extra] for extra in _EXTRAS},
        **settings["dependency-groups"],
        "build": settings["build-system"]["requires"],
    }
    return {group: {_read_name(each) for each in needs} for group, needs in groups.items()}


def _read_name(requirement: str) -> str:
    (name, *_) = _REQUIRED.findall(requirement)
    return re.sub(r"[-_.]+", "-", name).lower()


def find_faults(root: Path) -> list[str]:
    """Returns what is wrong with packages.toml and the bill, each with its remedy; none if both fit the locks."""
    locked, reasons = read_locks(root), read_reasons(root)
    direct = set().union(*find_direct_packages(root).values())
    faults = [f"{name} is locked, but {REASONS} does not say why; add it there" for name in locked.keys() - reasons]
    faults += [f"{name} is in {REASONS}, but not locked; remove it there" for name in reasons.keys() - locked]
    for package in read_packages(root):
        faults += _find_package_faults(package, locked, direct)
    bill = root / BILL
    if not bill.is_file() or bill.read_text(encoding="utf-8") != render_bill(root):
        faults.append(f"{BILL} is not the bill of these locks; write it with scripts/lock")
    return sorted(faults)


def _find_package_faults(package: LockedPackage, locked: Iterable[str], direct: Iterable[str]) -> list[str]:
    unknown = sorted(set(re.findall(r"[\w.-]+", package.licence)) - LICENCES - {"AND", "OR", "WITH"})
    faults = []
    if unknown or not package.licence:
        faults.append(f"{package.name}: its licence {package.licence!r} is not accepted; see LICENCES in {__file__}")
    if (package.name in direct) != bool(package.reason):
        faults.append(f"{package.name}: a reason is for packages that pyproject.toml names, and they need one")
    if not package.reason and not package.needed_by:
        faults.append(f"{package.name}: nothing needs it; remove it, or say in needed_by what does")
    return faults + [
        f"{package.name}: {parent} is not locked and cannot need it"
        for parent in package.needed_by
        if parent not in locked
    ]


def render_bill(root: Path) -> str:
    """Returns the bill of materials as the text of its file: CycloneDX 1.6, without time or serial number."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = read_packages(root)
    scopes = _find_scopes(root, packages)
    own = f"pkg:pypi/{settings['name']}@{settings['version']}"
    needs = {each.name: [other.name for other in packages if each.name in other.needed_by] for each in packages} | {
        "": [each.name for each in packages if each.reason]
    }
    refs = {package.name: f"pkg:pypi/{package.name}@{package.version}" for package in packages} | {"": own}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": own, "name": settings["name"], "version": settings["version"],
                "purl": own, "licenses": [{"expression": settings["license"]}],
            }
        },
        "components": [_describe_package(package, refs[package.name], scopes[package.name]) for package in packages],
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[each] for each in sorted(needs[name])]} for name in sorted(needs)
        ],
    }  # fmt: skip
    return json.dumps(bill, indent=1) + "\n"


def _describe_package(package: LockedPackage, ref: str, scope: str) -> dict[str, object]:
    described: dict[str, object] = {
        "type": "library", "bom-ref": ref, "name": package.name, "version": package.version, "scope": scope,
        "purl": ref, "licenses": [{"expression": package.licence}],
    }  # fmt: skip
    return described | ({"description": package.reason} if package.reason else {})


def _find_scopes(root: Path, packages: Sequence[LockedPackage]) -> dict[str, str]:
    """Which packages a client needs (required), which come with an extra (optional), and which only check streamd."""
    direct = find_direct_packages(root)
    scopes = dict.fromkeys((package.name for package in packages), "excluded")
    for scope, groups in (("optional", _EXTRAS), ("required", ("client",))):
        wanted = set().union(*(direct[group] for group in groups))
        while more := {each.name for each in packages if wanted.intersection(each.needed_by)} - wanted:
            wanted |= more
        scopes |= dict.fromkeys(wanted & scopes.keys(), scope)
    return scopes


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Writes the bill of materials of the locked packages.")
    parser.parse_args(arguments)
    (ROOT / BILL).write_text(render_bill(ROOT), encoding="utf-8")


if __name__ == "__main__":
    main()
