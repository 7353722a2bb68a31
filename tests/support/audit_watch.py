"""Has Python processes watched for what streamd never does, by the audit hook of tests/security."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_HOOK: Final = Path(__file__).resolve().parents[1] / "security"


@dataclass(frozen=True, slots=True)
class Watch:
    """An environment in which Python is watched, and what was seen."""

    environment: dict[str, str]
    log: Path

    def read_records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def find_faults(self) -> list[dict[str, Any]]:
        return [record for record in self.read_records() if record["event"] != "watched"]

    def list_commands(self) -> str:
        """The commands of all processes that were watched, one a line."""
        return "\n".join(" ".join(record["command"]) for record in self.read_records())


def watch_processes(place: Path, *writable: Path) -> Watch:
    """Returns a watch that keeps its files in `place`; the watched processes may write in the folders `writable`."""
    shim = place / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text("import audit_hook\n\naudit_hook.watch_process()\n")
    log = place / "audit.log"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(shim), str(_HOOK)]),
        "AUDIT_LOG": str(log),
        "AUDIT_WRITABLE": os.pathsep.join(map(str, writable)),
    }
    return Watch({**os.environ, **environment}, log)
