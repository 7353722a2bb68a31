"""The check `audit`: the locked packages agree with their list and bill, and no advisory is known for any of them.

The first half needs no network. The second asks the package index with pip-audit. Where the index has no advisories
or cannot be reached, the check says that nothing was audited, and passes: only a finding makes it fail.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bill_of_materials import ROOT, find_faults, read_locks

ADVISORIES: Final = Path("requirements/advisories.toml")
_ASK_S: Final = 300  # two requests a package, and the index may be slow; without an answer nothing was audited
_OWN: Final = frozenset({"pip", "setuptools", "streamd-loader", "uv"})  # a venv brings the first two, scripts/lock uv
_PROBE: Final = "packaging"  # a package with an old and public history: an index without it has no advisories at all


@dataclass(frozen=True, slots=True)
class Finding:
    """A locked package and an advisory on it, under all its names."""

    package: str
    names: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        remedy = f"fixed in {', '.join(self.fixed_in)}: scripts/lock --upgrade" if self.fixed_in else "no fix yet"
        return f"{self.package}: {' '.join(self.names)} ({remedy}); or give a reason in {ADVISORIES}"


@dataclass(frozen=True, slots=True)
class Report:
    """What pip-audit said: how many packages it asked about in vain, why, and what it found."""

    asked: int
    unanswered: int
    excuse: str
    findings: tuple[Finding, ...]


def find_unlocked(locked: Iterable[str]) -> list[str]:
    """Returns the installed distributions that no lock names."""
    installed = {re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower() for each in importlib.metadata.distributions()}
    return sorted(installed - set(locked) - _OWN)


def read_report(output: str, error: str) -> Report:
    """Returns what pip-audit's JSON says. Without JSON, all is unanswered and the end of its `error` is the excuse."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        lines = error.strip().splitlines()
        return Report(0, 1, lines[-1] if lines else "pip-audit said nothing", ())
    skipped = [each["skip_reason"] for each in packages if "skip_reason" in each]
    findings = tuple(
        Finding(f"{each['name']} {each['version']}", (found["id"], *found["aliases"]), tuple(found["fix_versions"]))
        for each in packages
        for found in each.get("vulns", ())
    )
    return Report(len(packages), len(skipped), skipped[0] if skipped else "", findings)


def drop_accepted(
    findings: Iterable[Finding], accepted: Mapping[str, Mapping[str, Any]], today: dt.date
) -> list[Finding]:
    """Returns the findings that no entry of advisories.toml accepts, under any of their names, today."""
    valid = {name for name, entry in accepted.items() if entry["reason"] and today <= entry["until"]}
    return [finding for finding in findings if not valid.intersection(finding.names)]


def ask_index(lock: str) -> Report:
    """Returns what the index knows of the packages in the text of a lock."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lock.txt"
        path.write_text(lock, encoding="utf-8")
        command = [
            sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--requirement", str(path),
            "--format", "json", "--aliases", "on", "--progress-spinner", "off",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
        except subprocess.TimeoutExpired:
            return Report(0, 1, f"no answer within {_ASK_S} s", ())
    return read_report(done.stdout, done.stderr)


def find_advisories(root: Path) -> list[str]:
    """Returns the findings that nobody has accepted, and prints what was and what was not audited."""
    lock = (root / "requirements" / "test.txt").read_text(encoding="utf-8")
    probe = re.search(rf"^{_PROBE}==(?:.*\\\n)*.*\n", lock, re.MULTILINE)
    if probe is None:
        return [f"{_PROBE} is not locked any more; let _PROBE in {__file__} name another package"]
    report = ask_index(probe[0])
    if not report.unanswered:
        report = ask_index(lock)
    if report.unanswered:
        which = "NOT AUDITED" if report.asked <= 1 else f"NOT AUDITED: {report.unanswered} of {report.asked} packages"
        print(f"audit: {which}: the index did not tell the advisories ({report.excuse})")
    else:
        print(f"audit: advisories looked up for {report.asked} packages")
    accepted = tomllib.loads((root / ADVISORIES).read_text(encoding="utf-8"))
    today = dt.datetime.now(dt.UTC).date()
    return [str(finding) for finding in drop_accepted(report.findings, accepted, today)]


def main() -> None:
    unlocked = [
        f"{name} is installed, but not locked; remove it or lock it" for name in find_unlocked(read_locks(ROOT))
    ]
    faults = [*find_faults(ROOT), *unlocked, *find_advisories(ROOT)]
    for fault in faults:
        print(f"audit: {fault}")
    print(f"audit: {len(read_locks(ROOT))} locked packages, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
