"""A target: what is fed with bytes, what it may raise, and how long and how much memory a case may take."""

from __future__ import annotations

import importlib
import re
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from signal import Signals
from typing import Final

from fuzz.mutations import STRUCTURED_SHARE, Edit, Repair
from streamd.errors import BrokenRuleError
from streamd.limits import GIB, MIB

RunCase = Callable[[bytes], "str | tuple[int, str]"]  # returns the effect in words; perhaps `FuzzTarget.unit` before it
MAX_TEXT_CHARS: Final = 1500  # of a traceback in an answer: a batch of them must fit into a pipe

# Bytes and all behind them, quoted text, numbers and paths.
_VARIABLE_TEXT: Final = re.compile(r"\bb['\"].*|'[^']*'|\"[^\"]*\"|\S*[\d/\\]\S*", re.DOTALL)
_MAX_EFFECT_CHARS: Final = 120

# The module that has each target; only the one that is wanted is imported, with its libraries.
TARGET_MODULES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("frames", "daemon_frames", "worker_records", "tokens", "receipts"), "fuzz.message_targets"),
    "verify": "fuzz.receipt_targets",
    "dispatcher": "fuzz.dispatcher_target",
    "gate_records": "fuzz.gate_target",
    **dict.fromkeys(("config", "manifest"), "fuzz.settings_targets"),
    **dict.fromkeys(
        (
            "csv",
            "tsv",
            "parquet",
            "filelist",
            "box_cells",
            "coco",
            "data_yaml",
            "yolo_labels",
            "tar",
            "npy",
            "npy_labels",
            "npy_masks",
            "hdf5",
            "hdf5_images",
            "lmdb",
            "lmdb_images",
        ),
        "fuzz.source_targets",
    ),
    **dict.fromkeys(("jpeg", "png", "gif", "bmp", "tiff", "webp", "avif", "pnm"), "fuzz.image_targets"),
    **dict.fromkeys(("raw_png", "raw_tiff", "raw_npy"), "fuzz.image_targets"),
}


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """One parser, or several that read the same bytes.

    `open_runner` prepares what the cases need and yields the function that runs one; it may raise `expected`, which is
    how streamd refuses input, and nothing else. A case takes at most `deadline_s` by the clock, the process at most
    `data_bytes` of heap, and all cases together let it grow by at most `growth_bytes`. The process may end by the
    signals `contained`, where the daemon has a process of its own for this and survives its end.
    """

    name: str
    what: str
    make_seeds: Callable[[], Sequence[bytes]]
    open_runner: Callable[[], AbstractContextManager[RunCase]]
    expected: tuple[type[Exception], ...] = ()
    edit: Edit | None = None
    repair: Repair | None = None
    edit_share: float = STRUCTURED_SHARE
    unit: str = "cases"
    deadline_s: float = 10.0
    data_bytes: int = GIB
    growth_bytes: int = 64 * MIB
    contained: frozenset[Signals] = frozenset()


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a case came to. `effect` is equal for inputs that are refused or accepted in the same way.

    `is_refused`: by an error that is expected. `fault` is the traceback of any other error, else empty.
    """

    effect: int
    units: int = 1
    is_refused: bool = False
    fault: str = ""


def load_target(name: str) -> FuzzTarget:
    """Imports and returns a target; MODULE:NAME names one of another module. Raises KeyError for an unknown name."""
    module, colon, own = name.partition(":")
    targets: Mapping[str, FuzzTarget] = importlib.import_module(module if colon else TARGET_MODULES[name]).TARGETS
    return targets[own if colon else name]


def run_case(target: FuzzTarget, run: RunCase, data: bytes) -> CaseResult:
    """Runs one case. Any error but the expected ones is a fault, and so is a broken rule of the daemon's own state."""
    try:
        effect = run(data)
    except BrokenRuleError:
        return _build_fault()
    except target.expected as error:
        return CaseResult(_compute_effect(f"{type(error).__name__} {error}"), is_refused=True)
    except Exception:  # noqa: BLE001 - whatever else is raised is what this tool looks for
        return _build_fault()
    units, words = (1, effect) if isinstance(effect, str) else effect
    return CaseResult(_compute_effect(words), units)


def _build_fault() -> CaseResult:
    text = traceback.format_exc()
    return CaseResult(compute_fault_id(text), fault=text[-MAX_TEXT_CHARS:])


def compute_fault_id(text: str) -> int:
    """Returns a number that is equal for faults of one cause: the same lines of code and the same kind of message."""
    lines = text.strip().splitlines()
    places = [line for line in lines if line.startswith("  File")][-3:]
    return zlib.crc32("\n".join([*places, _remove_facts(lines[-1] if lines else "")]).encode(errors="replace"))


def _compute_effect(text: str) -> int:
    known = _remove_facts(text[:MAX_TEXT_CHARS])[:_MAX_EFFECT_CHARS]
    return zlib.crc32(known.encode(errors="replace"))


def _remove_facts(text: str) -> str:
    return _VARIABLE_TEXT.sub("#", text)
