"""The list of locked packages and the bill of materials: both are complete, and a gap in either is named."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from pathlib import Path

import pytest
from bill_of_materials import BILL, REASONS, ROOT, find_faults, main, read_locks, read_packages, render_bill
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OLD_PIN = re.compile(r"^msgspec==\S+", re.MULTILINE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that the bill is made of, for a test to change."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_every_locked_package_has_a_licence_and_a_reason_and_is_in_the_bill() -> None:
    assert find_faults(ROOT) == []


def test_the_bill_is_valid_cyclonedx() -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str((ROOT / BILL).read_text()) is None


def test_the_bill_has_every_locked_version_and_says_what_a_client_needs() -> None:
    parts = json.loads(render_bill(ROOT))["components"]

    assert {part["name"]: part["version"] for part in parts} == read_locks(ROOT)
    required = {part["name"] for part in parts if part["scope"] == "required"}
    assert {"pyzmq", "numpy", "msgspec"} <= required
    assert required <= {"pyzmq", "numpy", "msgspec", "cffi", "pycparser"}  # CFFI is for PyPy
    assert {part["scope"] for part in parts if part["name"] in {"pytest", "mypy", "pip-audit"}} == {"excluded"}
    assert {part["scope"] for part in parts if part["name"] in {"pillow", "aiosignal", "h5py"}} == {"optional"}


def test_installed_packages_confirm_the_licences_and_who_needs_whom() -> None:
    installed: dict[str, importlib.metadata.Distribution] = {
        canonicalize_name(each.metadata["Name"]): each for each in importlib.metadata.distributions()
    }
    wrong = []
    for package in read_packages(ROOT):
        declared = (
            installed[package.name].metadata.json.get("license_expression") if package.name in installed else None
        )
        if declared is not None and declared != package.licence:
            wrong.append(f"{package.name}: it declares {declared}, and {REASONS} has {package.licence}")
        for parent in filter(installed.__contains__, package.needed_by):
            needs = {canonicalize_name(Requirement(each).name) for each in installed[parent].requires or []}
            if package.name not in needs:
                wrong.append(f"{package.name}: {parent} no longer needs it")

    assert wrong == []


def test_a_package_that_was_added_or_upgraded_without_the_bill_is_named(checkout: Path) -> None:
    lock = checkout / "requirements" / "test.txt"
    text = OLD_PIN.sub("msgspec==99.0", lock.read_text())
    lock.write_text(f"left-pad==1.0 \\\n    --hash=sha256:{'0' * 64}\n{text}")

    added, bill = find_faults(checkout)

    assert "left-pad is locked" in added
    assert "write it with scripts/lock" in bill


def test_a_package_that_is_gone_an_odd_licence_and_a_missing_reason_are_named(checkout: Path) -> None:
    reasons = checkout / REASONS
    rewrite(reasons, '[pillow]\nlicence = "MIT-CMU"\nreason', '[pillow]\nlicence = "SSPL-1.0"\ncomment')
    rewrite(reasons, '[aiosignal]\nlicence = "Apache-2.0"\nneeded_by = ["aiohttp"]', '[aiosignal]\nlicence = "MIT"')
    reasons.write_text(reasons.read_text() + '\n[zzz]\nlicence = "MIT"\nneeded_by = ["numpy"]\n')

    faults = "\n".join(find_faults(checkout))

    for fault in (
        "pillow: its licence 'SSPL-1.0' is not accepted",
        "pillow: a reason is for packages",
        "aiosignal: nothing needs it",
        "zzz is in requirements/packages.toml, but not locked",
    ):
        assert fault in faults


def test_the_bill_that_scripts_lock_writes_is_the_one_that_is_checked(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bill_of_materials.ROOT", checkout)
    (checkout / BILL).unlink()

    main([])

    assert (checkout / BILL).read_bytes() == (ROOT / BILL).read_bytes()
    assert "tools/bill_of_materials.py" in (ROOT / "scripts" / "lock").read_text()


def test_the_scripts_install_locked_packages_by_hash_and_nothing_else() -> None:
    """But for uv, which writes the locks: no hash of it could be checked before there is one."""
    installs = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "scripts").iterdir())
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"(bin/|-m )pip3? (install|download)\b", line) and not line.lstrip().startswith("#")
    ]

    assert len(installs) >= 3
    assert [each for each in installs if not re.search(r'--require-hashes|--no-index|"uv==\$UV_VERSION"', each)] == []
