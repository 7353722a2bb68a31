"""The states of the process's own random generators, which callbacks, losses and Keras on torch draw from."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


def take() -> dict[str, Any]:
    """Of Python, NumPy and, where it is loaded, torch on the CPU: plain data."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - what others draw from, whatever one should
    }
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy()
    return states


def put_back(states: dict[str, Any]) -> None:
    """Goes on where the generators were when `take` was called."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - as above
    torch = sys.modules.get("torch")
    if torch and "torch" in states:
        torch.set_rng_state(torch.from_numpy(states["torch"]))
