"""Runs the checks of the core on whatever `streamd` comes first on the path, and prints what they find as JSON.

Checks: `simulator`, whole daemons and trainers in virtual time; `random`, the window under random runs; `states`, the
window under what Hypothesis thinks of; `talk`, a client's session likewise. The window's own ledger speaks up in the
first three.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

TESTS: Final = Path(__file__).resolve().parent.parent
sys.path += [str(TESTS), *(str(TESTS / room) for room in ("client", "simulation", "scheduler"))]


@dataclass(frozen=True, slots=True)
class Find:
    """What a check came to: `what` it found, "" for nothing, after how many runs and how much processor time."""

    check: str
    what: str
    runs: int
    spent_s: float


def simulator(runs: int) -> tuple[str, int]:
    from simulator import Simulation  # noqa: PLC0415 - found on the path set above

    for seed in range(runs):
        broken = Simulation(seed).run().broken
        if broken:
            return broken, seed + 1
    return "", runs


def random_runs(runs: int) -> tuple[str, int]:
    from support.scheduler_driver import wander  # noqa: PLC0415 - found on the path set above
    from test_scheduler_at_random import random_trainer, random_world  # noqa: PLC0415 - found on the path set above

    for seed in range(runs):
        rng = random.Random(seed)  # noqa: S311 - no secret, a schedule that can be repeated
        world = random_world(rng)
        world.trainers += [random_trainer(world, rng) for _ in range(rng.randint(1, 6))]
        try:
            wander(world, rng, losses=rng.choice((0, 0, 3)))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was looked for
            return told(error), seed + 1
    return "", runs


def states(runs: int) -> tuple[str, int]:
    from test_scheduler_states import Daemon  # noqa: PLC0415 - found on the path set above

    return thought_of(Daemon, runs)


def talk(runs: int) -> tuple[str, int]:
    from test_client_session_states import Talk  # noqa: PLC0415 - found on the path set above

    return thought_of(Talk, runs)


def thought_of(machine: type[RuleBasedStateMachine], runs: int) -> tuple[str, int]:
    """What Hypothesis finds in about so many runs; which ones they are is the same each time."""
    from support.hypothesis_settings import explored  # noqa: PLC0415 - found on the path set above

    tried = 0

    class Counted(machine):  # type: ignore[misc, valid-type]  # whichever it is
        def __init__(self) -> None:
            nonlocal tried
            tried += 1
            super().__init__()

    try:
        run_state_machine_as_test(Counted, settings=explored(runs, shrink=False))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was looked for
        return told(error), tried
    return "", tried


def told(error: BaseException) -> str:
    """The error's first words, of the first of them when there are several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


CHECKS: Final[dict[str, Callable[[int], tuple[str, int]]]] = {
    "simulator": simulator,
    "random": random_runs,
    "states": states,
    "talk": talk,
}


def main() -> None:
    """--simulator, --random, --states and --talk say how many runs each check has; 0 leaves it out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", required=True, help="the folder that streamd must come from")
    parser.add_argument("--first", action="store_true", help="end with the first find")
    for check in CHECKS:
        parser.add_argument(f"--{check}", type=int, default=0)
    wish = parser.parse_args()
    import streamd  # noqa: PLC0415 - found on the path set above

    assert Path(streamd.__file__).is_relative_to(wish.package), f"{streamd.__file__} is not the copy"
    finds: list[Find] = []
    for name, look in CHECKS.items():
        runs = getattr(wish, name)
        if runs and not (wish.first and any(find.what for find in finds)):
            began_s = time.process_time()
            what, tried = look(runs)
            finds.append(Find(name, what, tried, time.process_time() - began_s))
    print(json.dumps([asdict(find) for find in finds]))  # noqa: T201 - read by who started it


if __name__ == "__main__":
    main()
