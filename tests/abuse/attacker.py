"""An attacking process, and how far it has come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from users import User

ATTACKS: Final = Path(__file__).with_name("attacks")
ENVIRONMENT: Final = {"HOME": "/nonexistent", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
_END_S: Final = 60.0


class Attacker:
    """One attacking process; see attacks/attack.py. `environment` adds to its environment."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        log: Path,
        user: User,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._log = name, log
        self.counts: Counter[str] = Counter()
        command = [sys.executable, str(ATTACKS / "attack.py"), name, endpoint, *options]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*user.build_prefix(), *command], stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd="/",
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
            )  # fmt: skip

    def has_done(self, rounds: int) -> bool:
        """Whether it has come so far, or been cut short as often. Raises AssertionError if it ended by itself."""
        text = self._log.read_text()
        assert self.process.poll() is None, f"the attacker {self.name} ended by itself: {text[-2000:]}"
        lines = text.splitlines(keepends=True)
        last = next((line for line in reversed(lines) if line.startswith("{") and line.endswith("\n")), "{}")
        self.counts = Counter(json.loads(last))
        return self.counts["rounds"] + self.counts["cut short"] >= rounds

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(_END_S)
