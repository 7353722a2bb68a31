"""Ctrl-C at a chosen moment of a call: at each point where Python checks for signals."""

from __future__ import annotations

import _thread
import dis
import sys
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

# A signal that came before or in one of these is dealt with when it is through.
_LOOK: Final = frozenset({"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"})


class Interrupter:
    """Interrupts what `call` calls at the `moment`th of the moments that there are in files `within`; 0 for none.

    `passed` is how many there were.
    """

    def __init__(self, moment: int, within: tuple[str, ...]) -> None:
        self.passed = 0
        self.moment = moment
        self._within = within
        # To ask for a missing key is no call in Python's eyes: the signal is dealt with after the traced instruction.
        self._send: defaultdict[str, None] = defaultdict(_thread.interrupt_main)

    def call(self, what: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return what()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if event != "call" or not frame.f_code.co_filename.endswith(self._within):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look

    def _look(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "opcode" and dis.opname[frame.f_code.co_code[frame.f_lasti]] in _LOOK:
            self.passed += 1
            if self.passed == self.moment:
                self._send["now"]
        return self._look
