"""Files of data: each is listed, opened and read as daemon and worker do it, from the scan to the rows of a slot."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from signal import Signals
from typing import Any, Final

import h5py
import lmdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.image_targets import list_image_seeds
from fuzz.mutations import Edit, Repair
from fuzz.structures import edit_cell, repair_tar
from fuzz.target import FuzzTarget, RunCase
from streamd.config.load import load_config
from streamd.core.slot_layout import compute_slot_bytes
from streamd.core.spec import StreamSpec
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.errors import StreamdError
from streamd.ipc.slots import PROGRESS_PAGE_BYTES, ProgressPage, create_memfd
from streamd.ipc.worker_messages import FillRows
from streamd.limits import GIB, MIB
from streamd.worker.fill_rows import TaskRunner
from streamd.worker.stream_reader import StreamReader

_MAX_SLOT_BYTES: Final = 64 * MIB  # of the batches that are filled here; the daemon's bound is its memory
_ROWS: Final = 4  # of a batch
_BATCHES: Final = 3  # read of a stream: the first two and the last
_CRASHES: Final = frozenset((Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGABRT, Signals.SIGFPE))
_PIXELS: Final = np.random.default_rng(1).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
_MASKS: Final = np.arange(6 * 5 * 4).reshape(6, 5, 4) % 7
_NAMES: Final = tuple(f"{number}.jpg" for number in range(6))

Files = Mapping[str, bytes]


@contextmanager
def _open_source(name: str, stream: Mapping[str, Any], files: Files) -> Iterator[RunCase]:
    """Yields what lists and reads a stream whose file `name` holds the case; `files` lie beside it."""
    shared = "/dev/shm"  # noqa: S108 - memory, where it exists: a case writes a manifest, and syncs it
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=shared if os.access(shared, os.W_OK) else None) as folder:
        place = Path(folder)
        for each, data in files.items():
            (place / each).write_bytes(data)
        settings = {**stream, "source": {"path": name, **stream["source"]}, "batch_size": _ROWS}
        (place / "config.yaml").write_text(json.dumps({"streams": {"train": settings}}), encoding="utf-8")
        config = load_config(place / "config.yaml")

        def run_source(data: bytes) -> str:
            (place / name).write_bytes(data)
            shutil.rmtree(place / "state", ignore_errors=True)
            write_sample_manifests(config, place / "state", lambda *_: None)
            (served,) = open_streams(config, place / "state")
            try:
                return read_batches(served.spec, served.manifest_path)
            finally:
                served.manifest.close()

        yield run_source


def read_batches(spec: StreamSpec, manifest: Path) -> str:
    """Fills batches of a listed stream as a worker does; returns what came of the rows."""
    if compute_slot_bytes(spec) > _MAX_SLOT_BYTES:
        return "too large for a slot"
    descriptor = create_memfd("fuzz-page", PROGRESS_PAGE_BYTES)
    reader, page = StreamReader.open(spec, manifest), ProgressPage(descriptor)
    os.close(descriptor)
    reasons = set()
    try:
        for index in sorted({*range(min(_BATCHES - 1, spec.batches)), spec.batches - 1}):
            reasons |= _fill_batch(reader, page, index)
    finally:
        page.close()
        reader.close()
    return " ".join(sorted(reasons)) or "whole"


def _fill_batch(reader: StreamReader, page: ProgressPage, index: int) -> set[str]:
    first, count = index * _ROWS, min(_ROWS, reader.spec.samples - index * _ROWS)
    ids, rows = np.arange(first, first + count, dtype=np.int64), np.arange(count, dtype=np.uint16)
    task = FillRows(1, 1, 1, compute_slot_bytes(reader.spec), count, rows, ids)
    runner = TaskRunner(reader, task, memoryview(bytearray(task.slot_bytes)), page)
    if not runner.gather_stored_rows():
        runner.decode_rows(reader.read_files(ids), 0, count)
    runner.write_labels()
    return {each.reason for each in runner.unfilled_rows}


def _make_table_seeds(separator: str) -> list[bytes]:
    rows = [["file", "label", "angle", "tags"]]
    rows += [[name, ("cat", "dog")[number % 2], f"{number / 3:.3f}", "a;b"] for number, name in enumerate(_NAMES)]
    plain = "\n".join(separator.join(row) for row in rows) + "\n"
    quoted = "\r\n".join(separator.join(f'"{cell}"' for cell in row) for row in rows)
    encodings = (plain.encode("utf-16"), plain.encode("utf-8-sig"), plain.replace("cat", "kätzchen").encode("cp1252"))
    return [plain.encode(), quoted.encode(), *encodings]


def _make_csv_seeds() -> list[bytes]:
    return [*_make_table_seeds(","), *_make_table_seeds(";")]


def _make_tsv_seeds() -> list[bytes]:
    return _make_table_seeds("\t")


def _make_parquet_seeds() -> list[bytes]:
    columns = {"file": list(_NAMES), "label": ["cat", "dog"] * 3, "angle": [number / 3 for number in range(6)]}
    table = pa.table({**columns, "tags": [["a"], [], ["a", "b"]] * 2})
    seeds: list[bytes] = []
    for options in ({"compression": "none"}, {"compression": "snappy", "use_dictionary": False}, {"version": "1.0"}):
        file = io.BytesIO()
        pq.write_table(table, file, **options)
        seeds.append(file.getvalue())
    return seeds


def _make_filelist_seeds() -> list[bytes]:
    lines = [f"{name} {('cat', 'dog')[number % 2]}" for number, name in enumerate(_NAMES)]
    return ["\n".join(lines).encode(), "\r\n".join(lines).encode("utf-16"), "\n".join(_NAMES).encode()]


def _make_tar_seeds() -> list[bytes]:
    images = list_image_seeds("JPEG")[:3]
    seeds: list[bytes] = []
    for form, folder in ((tarfile.GNU_FORMAT, "a"), (tarfile.PAX_FORMAT, "ä" * 120), (tarfile.USTAR_FORMAT, "cat")):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as tar:
            for number, image in enumerate(images):
                for suffix, data in (("jpg", image), ("cls", b"%d" % number), ("json", b'{"angle": 0.5}')):
                    member = tarfile.TarInfo(f"{folder}/{number}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        seeds.append(file.getvalue().rstrip(b"\0") + bytes(1024 + 512))
    return seeds


def _make_box_table_seeds() -> list[bytes]:
    cells = [
        "[[0, 0, 4, 4, 1], [1.5, 2, 3, 3]]",
        "[]",
        "",
        '[[0, 0, 2, 2, ""dog""]]',
        "[[-1, 0, 9, 1e2]]",
        "[[0,0,0,0]]",
    ]
    rows = [f'{name},"{cell}",{number}\n' for number, (name, cell) in enumerate(zip(_NAMES, cells, strict=True))]
    return ["".join(["file,boxes,other\n", *rows]).encode()]


def _make_coco_seeds() -> list[bytes]:
    images = [{"id": number, "file_name": name, "width": 9} for number, name in enumerate(_NAMES)]
    boxes = [
        {"id": number, "image_id": number % 4, "category_id": 7, "bbox": [0, 1.5, 3, number], "iscrowd": number % 2}
        for number in range(9)
    ]
    points = [{**each, "keypoints": [1, 2, 2, 3, 4, 0], "segmentation": [[0, 1, 2, 3]]} for each in boxes]
    categories = [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]
    wholes = [{"images": images, "annotations": each, "categories": categories} for each in (boxes, points)]
    return [json.dumps(whole).encode() for whole in wholes]


def _make_data_yaml_seeds() -> list[bytes]:
    return [
        b"path: .\ntrain: .\nval: [., list.txt]\nnames: {0: cat, 1: dog}\n",
        b"train: [list.txt, ./]\nnames:\n- cat\n- dog\nnc: 2\nkpt_shape: [3, 2]\n",
    ]


def _make_yolo_label_seeds() -> list[bytes]:
    return [b"0 0.5 0.5 0.25 1\n1 0.1 0.2 0.3 0.4\r\n\n", b"1 0.1 0.1 0.9 0.1 0.5 0.8\n", b"0 1e-3 .5 1. 2\n"]


def _make_yolo_files() -> Files:
    return {
        **_make_pictures(),
        "list.txt": b"./0.jpg\n1.jpg\n",
        "0.txt": b"0 0.5 0.5 0.25 1\n1 0.1 0.2 0.3 0.4 0.5 0.6",
    }


def _save_array(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _make_npy_seeds() -> list[bytes]:
    planes = np.ascontiguousarray(_PIXELS.transpose(0, 3, 1, 2))
    return [*map(_save_array, (_PIXELS, planes, (_PIXELS / 255).astype(np.float32), _PIXELS[..., 0].astype(">f8")))]


def _make_npy_label_seeds() -> list[bytes]:
    texts = np.array(["cat", "dog"] * 3)
    return [*map(_save_array, (np.arange(6) % 2, texts, texts.astype("S3"), np.arange(6.0).astype(">f4")))]


def _make_mask_seeds() -> list[bytes]:
    return [
        *map(_save_array, (_MASKS.astype(np.uint8), _MASKS[..., None], _MASKS % 2 == 0, (_MASKS * 999).astype(">u2")))
    ]


def _make_hdf5_seeds() -> list[bytes]:
    floats = (_PIXELS / 255).astype(np.float32)
    settings: list[dict[str, Any]] = [
        {"data": _PIXELS},
        {"data": _PIXELS, "chunks": (2, 5, 4, 3), "compression": "gzip", "shuffle": True},
        {"data": floats, "chunks": (3, 5, 4, 3), "fletcher32": True},
        {"data": _PIXELS, "chunks": (1, 5, 4, 3)},
    ]
    seeds: list[bytes] = []
    for options in settings:
        memory = io.BytesIO()
        with h5py.File(memory, "w", libver=("earliest", "latest")[len(seeds) % 2]) as file:
            file.create_dataset("x", **options)
            file.create_dataset("mask", data=_MASKS.astype("<i2"))
            file.create_dataset("label", data=np.arange(6) % 2)
            file.create_dataset("name", data=np.array(_NAMES, dtype="S8"))
        seeds.append(memory.getvalue())
    return seeds


def _make_lmdb_seeds() -> list[bytes]:
    seeds: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for number, pixels in enumerate((_PIXELS, np.repeat(_PIXELS, 20, axis=1))):  # the latter on pages of their own
            path = Path(folder) / str(number)
            with lmdb.open(str(path), map_size=1 << 20, subdir=False, max_dbs=4, lock=False) as environment:
                samples = {b"%010d" % each: _pack_sample(image, each) for each, image in enumerate(pixels)}
                for database, items in ((b"data_db", samples), (b"meta_db", {b"nb_samples": b"6"})):
                    opened = environment.open_db(database)
                    with environment.begin(db=opened, write=True) as transaction:
                        for key, value in items.items():
                            transaction.put(key, value)
            with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment:
                used = environment.info()["last_pgno"] + 1
            seeds.append(path.read_bytes()[: used * 4096])
    return seeds


def _pack_sample(image: Any, label: int) -> bytes:
    arrays = {"X": image, "y": np.array([label % 2]), "mask": _MASKS[label]}
    return msgspec.msgpack.encode(
        {
            name: msgspec.msgpack.encode(
                {b"type": 2, b"dtype": each.dtype.str, b"shape": each.shape, b"data": each.tobytes()}
            )
            for name, each in arrays.items()
        }
    )


def _make_pictures() -> Files:
    images = list_image_seeds("JPEG")
    return {name: images[number % len(images)] for number, name in enumerate(_NAMES)}


def _build_target(
    name: str,
    what: str,
    make_seeds: Callable[[], Sequence[bytes]],
    file: str,
    stream: Mapping[str, Any],
    *,
    files: Callable[[], Files] = dict,
    edit: Edit | None = None,
    repair: Repair | None = None,
    contained: frozenset[Signals] = frozenset(),
) -> FuzzTarget:
    def open_runner() -> AbstractContextManager[RunCase]:
        return _open_source(file, stream, files())

    return FuzzTarget(
        name,
        what,
        make_seeds,
        open_runner,
        (StreamdError,),
        edit,
        repair,
        data_bytes=2 * GIB,
        growth_bytes=256 * MIB,
        contained=contained,
    )


_IMAGE: Final = {"size": [8, 8]}
_TABLE_LABELS: Final = {"label": "category", "angle": "float"}
_TABLE: Final = {"source": {"kind": "table", "image": "file"}, "image": _IMAGE, "labels": _TABLE_LABELS}
_TAR_LABELS: Final = {"label": {"from": "cls", "type": "category"}, "angle": {"from": "json:angle", "type": "float"}}
_MASKED: Final[dict[str, dict[str, Any]]] = {
    "photo": {**_IMAGE, "resize": "random_crop"},
    "mask": {"like": "photo", "mode": "index"},
}
_HDF5: Final = {"kind": "hdf5", "images": "/x", "range": [0, 1], "names": "/name"}
_TARGETS: Final = (
    _build_target("csv", "a table as CSV", _make_csv_seeds, "t.csv", _TABLE, files=_make_pictures, edit=edit_cell),
    _build_target("tsv", "a table as TSV", _make_tsv_seeds, "t.tsv", _TABLE, files=_make_pictures, edit=edit_cell),
    _build_target("parquet", "a table as Parquet", _make_parquet_seeds, "t.parquet", _TABLE, files=_make_pictures),
    _build_target(
        "filelist",
        "a list of files with labels",
        _make_filelist_seeds,
        "list.txt",
        {"source": {"kind": "filelist"}, "image": _IMAGE},
        files=_make_pictures,
        edit=edit_cell,
    ),
    _build_target(
        "box_cells",
        "boxes in the cells of a table",
        _make_box_table_seeds,
        "t.csv",
        {**_TABLE, "labels": {"boxes": {"type": "boxes", "max": 9, "classes": ["cat", "dog"]}}},
        files=_make_pictures,
        edit=edit_cell,
    ),
    _build_target(
        "coco",
        "a COCO file of boxes and key points",
        _make_coco_seeds,
        "a.json",
        {"source": {"kind": "coco", "root": "."}, "image": _IMAGE},
        files=_make_pictures,
    ),
    _build_target(
        "data_yaml",
        "the data.yaml of a YOLO data set",
        _make_data_yaml_seeds,
        "data.yaml",
        {"source": {"kind": "yolo", "part": "train"}, "image": _IMAGE},
        files=_make_yolo_files,
    ),
    _build_target(
        "yolo_labels",
        "the boxes of a picture of a YOLO data set",
        _make_yolo_label_seeds,
        "1.txt",
        {"source": {"kind": "yolo", "path": "data.yaml", "part": "train"}, "image": _IMAGE},
        files=lambda: {**_make_pictures(), "data.yaml": b"train: .\nnames: [cat, dog]\n"},
        edit=edit_cell,
    ),
    _build_target(
        "tar",
        "a shard of images with labels",
        _make_tar_seeds,
        "s.tar",
        {"source": {"kind": "tar"}, "image": _IMAGE, "labels": _TAR_LABELS},
        repair=repair_tar,
    ),
    _build_target(
        "npy",
        "pixels in an array",
        _make_npy_seeds,
        "x.npy",
        {"source": {"kind": "npy", "range": [0, 1]}, "labels": {}},
    ),
    _build_target(
        "npy_labels",
        "labels in an array, of images in another",
        _make_npy_label_seeds,
        "label.npy",
        {"source": {"kind": "npy", "path": "x.npy"}, "labels": {"label": {"from": "label.npy", "type": "category"}}},
        files=lambda: {"x.npy": _save_array(_PIXELS)},
    ),
    _build_target(
        "npy_masks",
        "masks in an array, of photos in another",
        _make_mask_seeds,
        "mask.npy",
        {
            "source": {"kind": "npy", "path": "x.npy"},
            "labels": {},
            "images": {**_MASKED, "mask": {**_MASKED["mask"], "from": "mask.npy"}},
        },
        files=lambda: {"x.npy": _save_array(_PIXELS)},
    ),
    # Both libraries follow what a file says of itself. A listing is a process of its own and is refused when it ends by
    # a signal, and a worker that ends so condemns the row or is replaced: the daemon survives.
    _build_target(
        "hdf5",
        "pixels and labels in an HDF5 file",
        _make_hdf5_seeds,
        "x.hdf5",
        {"source": _HDF5, "labels": {"label": "category"}},
        contained=_CRASHES,
    ),
    _build_target(
        "lmdb",
        "pixels and labels in an LMDB file",
        _make_lmdb_seeds,
        "x.mdb",
        {"source": {"kind": "lmdb", "images": "X"}, "labels": {"y": "category"}},
        contained=_CRASHES,
    ),
    _build_target(
        "hdf5_images",
        "photos and masks in an HDF5 file",
        _make_hdf5_seeds,
        "x.hdf5",
        {
            "source": {"kind": "hdf5", "range": [0, 1]},
            "labels": {},
            "images": {**_MASKED, "photo": {**_MASKED["photo"], "from": "/x"}},
        },
        contained=_CRASHES,
    ),
    _build_target(
        "lmdb_images",
        "photos and masks in an LMDB file",
        _make_lmdb_seeds,
        "x.mdb",
        {
            "source": {"kind": "lmdb"},
            "labels": {},
            "images": {**_MASKED, "photo": {**_MASKED["photo"], "from": "X"}},
        },
        contained=_CRASHES,
    ),
)
TARGETS: Final = {each.name: each for each in _TARGETS}
