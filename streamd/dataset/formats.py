"""The kinds of sources, each with the function that lists it. The configuration imports this, so it stays light.

A new kind is a folder with its settings and a function of (stream, source, labels, progress) that lists its samples,
and one line in `FORMATS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamd.dataset.arrays import NpySource
from streamd.dataset.coco import CocoSource
from streamd.dataset.files import FilelistSource, FolderSource, TableSource
from streamd.dataset.hdf5 import Hdf5Source
from streamd.dataset.lmdb import LmdbSource
from streamd.dataset.sources import DataSource
from streamd.dataset.tar import TarSource
from streamd.dataset.yolo import YoloSource


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """One kind of source: its settings, the function that lists it, as `module:function`, and what pyarrow reads there.

    The module is imported when a source of its kind is listed, since it loads libraries that are slow or may be
    missing.
    """

    settings: type[DataSource]
    function: str
    read_by_pyarrow: str = "the labels"


FORMATS: Final[dict[str, SourceFormat]] = {
    each.settings.kind: each
    for each in (
        SourceFormat(FolderSource, "streamd.dataset.files.folder:scan_folder"),
        SourceFormat(TableSource, "streamd.dataset.files.table:scan_table", "the table"),
        SourceFormat(FilelistSource, "streamd.dataset.files.filelist:scan_filelist", "the list"),
        SourceFormat(Hdf5Source, "streamd.dataset.hdf5.scan:scan_hdf5"),
        SourceFormat(LmdbSource, "streamd.dataset.lmdb.scan:scan_lmdb"),
        SourceFormat(NpySource, "streamd.dataset.arrays.npy_scan:scan_npy"),
        SourceFormat(TarSource, "streamd.dataset.tar.scan:scan_tar"),
        SourceFormat(CocoSource, "streamd.dataset.coco.scan:scan_coco", "the names of the pictures"),
        SourceFormat(YoloSource, "streamd.dataset.yolo.scan:scan_yolo", "the names of the pictures"),
    )
}
