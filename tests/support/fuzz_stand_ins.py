"""Targets for the fuzzer that fail in each way there is, where their input begins with a certain byte."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from signal import Signals
from typing import Final

from fuzz.target import FuzzTarget, RunCase

from streamd.errors import BrokenRuleError, ConfigError
from streamd.limits import MIB

GROWTH_MIB: Final = 24  # of a case that begins with M

_kept: list[bytearray] = []


def fail_as_told(data: bytes) -> str:
    """Does what the first byte stands for; any other is accepted."""
    match data[:1]:
        case b"E":
            raise ZeroDivisionError(f"for {data!r}")
        case b"R":
            raise ConfigError(f"refused {data!r}")
        case b"B":
            raise BrokenRuleError("numbers_dense", "facts")
        case b"K":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"X":
            os._exit(3)
        case b"H":
            signal.sigwait([])
        case b"M":
            _kept.append(bytearray(os.urandom(GROWTH_MIB * MIB)))
        case b"L":
            bytearray(4096 * MIB)
    return f"accepted {data[:1]!r}"


def _open_runner() -> AbstractContextManager[RunCase]:
    @contextmanager
    def open_runner() -> Iterator[RunCase]:
        yield fail_as_told

    return open_runner()


def _build_target(name: str, make_seeds: Callable[[], list[bytes]], contained: frozenset[Signals]) -> FuzzTarget:
    return FuzzTarget(
        f"support.fuzz_stand_ins:{name}",
        "fails as told",
        make_seeds,
        _open_runner,
        (ConfigError,),
        deadline_s=1.0,
        growth_bytes=2 * GROWTH_MIB * MIB,
        contained=contained,
    )


TARGETS: Final = {
    "fragile": _build_target("fragile", lambda: [b"a", b"R1"], frozenset()),
    "contained": _build_target("contained", lambda: [b"a"], frozenset({Signals.SIGSEGV})),
    "faulty": _build_target("faulty", lambda: [b"E1", b"E2", b"a"], frozenset()),
}
