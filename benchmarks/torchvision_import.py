"""Lets torchvision's folders and transforms be imported beside a torch for CPUs."""

from __future__ import annotations

import sys
from importlib.metadata import version
from types import ModuleType


def allow_torchvision_without_operators() -> None:
    """Call it before the first import of torchvision.

    The index has torchvision built for CUDA only. Beside a torch for CPUs its compiled operators do not load, and the
    two modules that describe them to torch fail its import. Folders, and transforms of Pillow's images and of tensors,
    need none of these operators.
    """
    if version("torch").endswith("+cpu") and not version("torchvision").endswith("+cpu"):
        for name in ("torchvision._meta_registrations", "torchvision._autograd_registrations"):
            sys.modules.setdefault(name, ModuleType(name))
