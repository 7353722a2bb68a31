"""A process that lists and reads a data set with the package on PYTHONPATH, and prints the result as JSON."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import numpy as np

import streamd
from streamd.config.load import load_config
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.worker.stream_reader import StreamReader


def main(config: Path, state: Path) -> None:
    """Writes name, label and bytes of each sample, or why it is bad."""
    loaded = load_config(config)
    write_sample_manifests(loaded, state, lambda *_: None)
    (stream,) = open_streams(loaded, state)
    source = StreamReader.open(stream.spec, stream.manifest_path)
    ids = np.arange(stream.spec.samples, dtype=np.int64)
    source.read_files_timed(ids, is_ahead=True)
    labels = stream.manifest.gather_label("label", ids).tolist()
    blobs = [blob for each in ids.tolist() if not isinstance(blob := source.read_sample(each), tuple)]
    samples = [
        [stream.format_file_name(row), label, base64.b64encode(blob).decode()
         if isinstance(blob, bytes) else {"bad": blob.reason, "lasting": blob.lasting}]
        for row, (label, blob) in enumerate(zip(labels, blobs, strict=True))
    ]  # fmt: skip
    source.close()
    classes = stream.spec.labels["label"].classes
    json.dump({"package": streamd.__file__, "classes": classes, "samples": samples}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
