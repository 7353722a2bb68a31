"""Long labels are listed in at most twice their memory, whatever the list is written in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.daemon_process import write_images

ROWS: Final = 40_000
LABEL_BYTES: Final = 1024
# The peak of a process counts what it has ever had; this one forgets it before each list.
MEASURE: Final = """
import json, re, sys
from pathlib import Path
from streamd.daemon.streams.catalog import write_sample_manifests
from streamd.config.load import load_config

def peak_bytes():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

for number, config in enumerate(map(json.loads, sys.stdin)):
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    write_sample_manifests(load_config(config), Path(sys.argv[1], str(number)), lambda *_: None)
    print(peak_bytes() - before, flush=True)
"""


def rows(number: int) -> Iterator[tuple[str, str, str]]:
    """A file, a label of its own, and a side."""
    return (("cat/0000.jpg", f"{row:08}".ljust(LABEL_BYTES, "x"), "ab"[row % 4 == 0]) for row in range(number))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of ROWS samples, and small ones to warm up with."""
    folder = write_images(tmp_path_factory.mktemp("long"), {"cat": 1})
    for name, number in (("small", 10), ("large", ROWS)):
        (folder / f"{name}.csv").write_text("file,label,side\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows(number)))
        (folder / f"{name}.txt").write_text("".join(f"{a} {b}\n" for a, b, _ in rows(number)))
        columns = dict(zip(("file", "label", "side"), map(list, zip(*rows(number), strict=True)), strict=True))
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def stream(path: Path, **source: object) -> dict[str, Any]:
    kind = {"kind": "filelist"} if path.suffix == ".txt" else {"kind": "table", "image": "file"}
    return {
        "source": {**kind, "path": str(path), **source},
        "labels": {"label": "string"},
        "image": {"size": [8, 8]},
        "batch_size": 8,
    }


@pytest.mark.long
def test_long_labels_are_listed_in_at_most_twice_their_memory(written: Path, tmp_path: Path) -> None:
    kinds: list[tuple[str, dict[str, object]]] = [(kind, {}) for kind in ("csv", "parquet", "txt")] + [
        ("csv", {"where": {"side": "a"}})
    ]
    asked = [stream(written / f"{size}.{kind}", **source) for size in ("small", "large") for kind, source in kinds]
    lines = "".join(json.dumps({"streams": {"train": each}}) + "\n" for each in asked)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
    peaks = [int(line) / (ROWS * LABEL_BYTES) for line in done.stdout.splitlines()][len(kinds) :]
    assert len(peaks) == len(kinds)
    assert max(peaks) < 2, peaks
