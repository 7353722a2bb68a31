"""Fuzzing: damaged input for everything that streamd parses, from a corpus that it makes itself. See scripts/fuzz.

`mutations` changes bytes (pure), `structures` changes values within a format and repairs its checksums (pure). The
modules `..._targets` say what is fed with the bytes, and `target` what a target is. `case_process` runs cases in a
process of its own, since a decoder may crash it; `campaign` makes the cases, keeps those that had a new effect, and
judges; `findings` writes what was found.
"""
