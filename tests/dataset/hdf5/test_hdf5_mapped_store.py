"""Rows in uncompressed chunks of an HDF5 file are read without HDF5."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.stores_on_disk import open_hdf5, write_hdf5


def test_a_worker_loads_no_hdf5(tmp_path: Path) -> None:
    opened = open_hdf5(write_hdf5(tmp_path / "x.h5", chunks=(3, 6, 8, 3)))
    names = str(opened.stream.manifest_path), str(opened.stream.manifest.root)
    code = (
        "import os, sys; from pathlib import Path; from streamd.dataset.manifest.manifest import Manifest\n"
        "from streamd.dataset.open_store import open_store\n"
        f"open_store(Manifest.open(Path({names[0]!r})), os.open({names[1]!r}, os.O_RDONLY))\n"
        "sys.exit('h5py' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    opened.close()
