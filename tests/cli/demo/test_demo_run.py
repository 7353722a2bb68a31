"""The demo shows what its trainers write to stderr, without TensorFlow's notes at its start."""

from __future__ import annotations

import io

from streamd.cli.demo import copy_stderr_lines

NOTES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795418461.507008   31093 port.cc:153] oneDNN custom operations are on. You may see slightly different
I0000 00:00:1795418461.507933   31093 cudart_stub.cc:31] Could not find cuda drivers on your machine
I0000 00:00:1795418461.553932   31093 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow
E0000 00:00:1795418464.531030   31093 cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)
"""
ERRORS = """\
E0000 00:00:1795418464.531030   31093 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)
W0000 00:00:1795418464.531030   31093 cpu_allocator.cc:83] Allocation of 1 exceeds 10% of free system memory.
F0000 00:00:1795418464.531030   31093 threadpool.cc:1] Check failed: ret == 0
Traceback (most recent call last):
streamd-train: the daemon does not answer
"""


def test_tensorflow_start_notes_are_dropped_and_other_lines_are_shown() -> None:
    shown = io.StringIO()
    copy_stderr_lines(io.StringIO(NOTES + ERRORS + NOTES), shown)
    assert shown.getvalue() == ERRORS


def test_a_line_that_quotes_a_note_is_shown() -> None:
    shown, line = io.StringIO(), f"ValueError: {NOTES.splitlines()[1]}\n"
    copy_stderr_lines(io.StringIO(line), shown)
    assert shown.getvalue() == line
