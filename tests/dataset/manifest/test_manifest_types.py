"""A loaded configuration is a valid request for a scan."""

from __future__ import annotations

from pathlib import Path

from support.source_configs import put

from streamd.config.load import load_config
from streamd.dataset.scan import scan_source


def test_a_loaded_configuration_can_be_scanned(tmp_path: Path) -> None:
    put(tmp_path, "data/cat/a.jpg", "data/dog/b.jpg")
    (tmp_path / "all.csv").write_text("image,kind,angle\ndata/cat/a.jpg,cat,1\ndata/dog/b.jpg,dog,2\n")
    (tmp_path / "config.yaml").write_text("""
streams:
  folder: {source: {kind: folder, path: data}, image: {size: [8, 8]}, batch_size: 2}
  table:
    source: {kind: table, path: all.csv, image: image}
    labels: {animal: {from: kind, type: category, classes: [dog, cat]}, angle: float}
    image: {size: [8, 8]}
    batch_size: 2
""")
    streams = load_config(tmp_path / "config.yaml").streams
    folder, table = (scan_source(streams[name].listing_request, lambda _: None) for name in ("folder", "table"))
    assert folder.labels["label"].tolist() == [0, 1]
    assert table.labels["animal"].tolist() == [1, 0]
    assert table.labels["angle"].tolist() == [1.0, 2.0]
