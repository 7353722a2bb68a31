"""Runs `fuzz.command`: `python -m fuzz`."""

from __future__ import annotations

from fuzz.command import main

main()
