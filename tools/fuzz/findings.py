"""Findings: inputs that did what none may do, each as a file beside a text that says what and how to repeat it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz.target import TARGET_MODULES

_REPORT_SUFFIX: Final = ".txt"


@dataclass(frozen=True, slots=True)
class Finding:
    """An input of `target`, what `kind` of fault it caused, and what was said of it.

    `fault_id` is equal for findings of one cause. `repeats`: it did the same alone, in a new process.
    """

    target: str
    kind: str
    text: str
    data: bytes
    fault_id: int
    repeats: bool = True

    @property
    def headline(self) -> str:
        lines = self.text.strip().splitlines()
        return f"{self.target}: {self.kind}: {lines[-1] if lines else 'nothing was said'}"


def save_finding(folder: Path, finding: Finding) -> Path:
    """Writes the input and its text below `folder`, and returns the input's path: TARGET/DIGEST."""
    path = folder / finding.target / hashlib.blake2b(finding.data, digest_size=6).hexdigest()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(finding.data)
    alone = "" if finding.repeats else "It did not repeat alone: earlier cases of the same process matter.\n"
    path.with_suffix(_REPORT_SUFFIX).write_text(
        f"{finding.headline}\n\nscripts/fuzz --reproduce {path}\n{alone}\n{finding.text}\n", encoding="utf-8"
    )
    return path


def list_saved_inputs(folder: Path) -> list[Path]:
    """Returns the inputs below a folder of findings, without their texts."""
    return sorted(
        path for target in TARGET_MODULES for path in folder.glob(f"{target}/*") if path.suffix != _REPORT_SUFFIX
    )
