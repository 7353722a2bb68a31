"""Tests that are coroutines: each runs in an event loop of its own. And a wait for what another process does."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final

import pytest

_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
LIMIT_S: Final = 40.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


async def wait_for_condition(condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
    """Waits for a condition while the loop serves others; the limit is there to fail, not to pace."""
    deadline_s, pause_s = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {limit_s:g} s in vain until {what}"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
