"""Threads of a new process can read at the same time: manifests in a worker, tokens in a trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.daemon_process import write_images
from support.served_folder import serve

THREADS: Final = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from {module} import {name}

sys.setswitchinterval(1e-6)
together = threading.Barrier(8)

def read(path):
    together.wait()
    {read}

with ThreadPoolExecutor(8) as threads:
    list(threads.map(read, [Path(sys.argv[1])] * 8))
"""
TOKEN: Final = '{"stream":"s","order_id":"o","pixel_id":"p","cursor":{},"digest":"%s"}' % ("0" * 32)


@pytest.fixture
def read_at_once(tmp_path: Path) -> Path:
    """A manifest, and a token."""
    serve(write_images(tmp_path / "data", {"cat": 4}), tmp_path / "state").manifest.close()
    (tmp_path / "token").write_text(TOKEN)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "name", "read", "what"),
    [
        ("streamd.dataset.manifest.manifest", "Manifest", "Manifest.open(path).close()", "state/*.manifest"),
        ("streamd.core.token", "Token", "Token.from_json(path.read_text())", "token"),
    ],
)
def test_eight_threads_of_a_new_process_can_read_it_at_once(
    read_at_once: Path, module: str, name: str, read: str, what: str
) -> None:
    (path,) = read_at_once.glob(what)
    command = [sys.executable, "-c", THREADS.format(module=module, name=name, read=read), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
