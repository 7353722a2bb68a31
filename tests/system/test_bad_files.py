"""Files that are not images, or that changed since they were listed: each makes one row bad and is named."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.checked_epochs import Epoch, number, verdicts
from support.daemon_process import Start, stream_config, wait_until, write_images
from support.daemon_reload import said

import streamd
from streamd.cli.check.run import inspect_data
from streamd.cli.terminal import ProgressDisplay
from streamd.client import Batch
from streamd.errors import StreamStoppedError
from streamd.limits import MAX_FILE_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 20, "dog": 20})


@pytest.mark.fault("27", "files changed, removed and locked in the middle of an epoch")
def test_files_that_change_in_mid_epoch_make_only_their_own_rows_bad(
    start_daemon: Start, tmp_path: Path, folder: Path
) -> None:
    many = write_images(tmp_path / "many", {"cat": 160}, size=(16, 16))
    streams = {"train": stream_config(many, batch_size=2, shuffle="none"), "other": stream_config(folder)}
    daemon = start_daemon({"streams": streams, "memory": "8MiB"})
    changed, removed, locked = (many / "cat" / f"{each:04}.jpg" for each in (140, 150, 159))
    expected = ["stale: changed since it was listed", "No such file or directory"]

    def harm(batch: Batch) -> None:
        if batch.index == 0:  # the window is far from the last rows
            changed.write_bytes(changed.read_bytes() + b"more")
            removed.unlink()
            locked.chmod(0)
            if not os.access(locked, os.R_OK):  # root may read what nobody may
                expected.append("Permission denied")

    epoch = Epoch(daemon, many, between=harm, prefetch=2)
    assert [reason.partition(";")[0] for _, reason, _ in epoch.bad] == expected
    assert [file for file, _, _ in epoch.bad][:2] == ["cat/0140.jpg", "cat/0150.jpg"]
    assert sorted(Epoch(daemon, folder, "other").ids) == list(range(40))


# --- what lies in folders


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def oddities(sound: bytes) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files that are images, however odd, and files that are none; each by its name."""
    noise = np.random.default_rng(7)
    colours = Image.fromarray(noise.integers(0, 256, (40, 50, 3), dtype=np.uint8))
    deep = Image.fromarray(noise.integers(0, 65536, (40, 50), dtype=np.uint16))
    good = {
        "palette.png": encoded(colours.quantize(16), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "cmyk.jpg": encoded(colours.convert("CMYK"), "JPEG"),
        "progressive.jpg": encoded(colours, "JPEG", progressive=True),
        "animated.gif": encoded(colours, "GIF", save_all=True, append_images=[colours.rotate(90)]),
        "png named.jpg": encoded(colours, "PNG"),
        "tiff named.jpg": encoded(colours, "TIFF"),
    }
    bad = {
        "truncated.jpg": sound[: len(sound) // 2],
        "truncated.png": good["palette.png"][:200],
        "empty.jpg": b"",
        "random.jpg": noise.bytes(2000),
        "wrong magic.jpg": b"XX" + sound[2:],
        "eps named.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
        "pdf named.jpg": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n%%EOF\n",
        "svg named.jpg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="/etc/passwd"/></svg>',
    }
    return good, bad


@pytest.mark.fault("23", "odd and damaged images, five in a hundred")
def test_odd_images_are_decoded_and_damaged_ones_are_named(start_daemon: Start, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "data", {"cat": 280}, size=(16, 16))
    good, bad = oddities((folder / "cat/0000.jpg").read_bytes())
    for name, data in (good | bad).items():
        (folder / "cat" / name).write_bytes(data)
    policy = {"policy": "substitute", "max_fraction": 0.05}
    daemon = start_daemon({"streams": {"train": stream_config(folder, bad_samples=policy)}})
    epoch = Epoch(daemon, folder)
    assert sorted(file for file, _, _ in epoch.bad) == sorted(f"cat/{name}" for name in bad)
    assert all(reason for _, reason, _ in epoch.bad)
    assert (epoch.receipt.bad, len(verdicts(daemon))) == (len(bad), len(bad))
    assert len(set(epoch.ids)) == 280 + len(good)
    assert number(daemon, "engine", "worker_deaths") == 0
    wait_until(lambda: len(said(daemon, "sample.bad")) == len(bad), "each is logged")


def test_images_that_are_all_unreadable_stop_their_stream_with_a_message(start_daemon: Start, tmp_path: Path) -> None:
    all_bad, good = (write_images(tmp_path / name, {"cat": 16}) for name in ("all", "good"))
    for path in all_bad.glob("cat/*"):
        path.write_bytes(b"\xff\xd8\xff this is no picture" * 9)
    daemon = start_daemon({"streams": {"all": stream_config(all_bad), "good": stream_config(good)}})
    says = (
        r"of 16 samples are bad, more than bad_samples.max_fraction 0.01 allows; the last of them is cat/00\d\d.jpg: "
    )
    with streamd.connect(daemon.endpoint) as client:
        for _ in range(20):  # the message and the end of the connection are in a race, which the message must win
            with pytest.raises(StreamStoppedError, match=says), client.subscribe("all") as stream:
                next(iter(stream))
        wait_until(lambda: len(said(daemon, "session.began")) == 20, "each is logged")
    assert sorted(Epoch(daemon, good, "good").ids) == list(range(16))


@pytest.mark.fault("25", "what is no file of pixels takes an image's place after it was listed")
def test_links_pipes_and_huge_files_in_place_of_images_are_refused(
    start_daemon: Start, tmp_path: Path, folder: Path
) -> None:
    daemon = start_daemon({"streams": {"train": stream_config(folder, shuffle="none")}})
    cats = [folder / "cat" / f"{number:04}.jpg" for number in range(5)]
    for path in cats:
        path.unlink()
    secret = tmp_path / "secret.jpg"
    secret.write_bytes((folder / "dog/0000.jpg").read_bytes())
    cats[0].symlink_to(secret)
    cats[1].symlink_to("/dev/zero")
    os.mkfifo(cats[2])
    with cats[3].open("wb") as giant:
        giant.truncate(10 << 30)
    cats[4].mkdir()
    epoch = Epoch(daemon, folder)
    assert [(file, reason) for file, reason, _ in epoch.bad] == [
        ("cat/0000.jpg", "it lies outside the data's root"),
        ("cat/0001.jpg", "it lies outside the data's root"),
        ("cat/0002.jpg", "not a regular file"),
        ("cat/0003.jpg", f"the file has {10 << 30} bytes, and at most {MAX_FILE_BYTES} are allowed"),
        ("cat/0004.jpg", "not a regular file"),
    ]


@pytest.mark.parametrize(("junk", "stops"), [([60], False), ([3, 50, 51, 118], False), (range(0, 44, 4), True)])
@pytest.mark.long
def test_clips_go_on_over_a_few_junk_files_and_check_says_as_the_daemon_does(
    start_daemon: Start, tmp_path: Path, junk: Sequence[int], stops: bool
) -> None:
    for each in range(120):
        Image.new("RGB", (8, 8), (each, 0, 0)).save(tmp_path / f"{each}.png")
    for each in junk:
        (tmp_path / f"{each}.png").write_bytes(b"<html>not found</html>")
    rows = [f"{each}.png,a,{each}" for each in range(120)]
    (tmp_path / "t.csv").write_text("\n".join(["photo,drive,frame", *rows, ""]))
    frames = {"by": "drive", "order": "frame", "offsets": [*range(-15, 1)]}
    source = {"kind": "table", "path": str(tmp_path / "t.csv")}
    images = {"clip": {"from": "photo", "size": [8, 8], "frames": frames}}
    clips = {"source": source, "images": images, "batch_size": 8, "bad_samples": {"max_fraction": 0.01}}
    (tmp_path / "config.json").write_text(json.dumps({"streams": {"clips": clips}}))
    found = inspect_data(tmp_path / "config.json", ProgressDisplay()).streams["clips"].bad_samples
    assert (found.stops is not None, found.allowed, found.unreadable_files) == (stops, 10, len(junk))
    daemon = start_daemon({"streams": {"clips": clips}})
    with streamd.connect(daemon.endpoint) as client, client.subscribe("clips", epochs=1) as stream:
        if stops:
            with pytest.raises(StreamStoppedError, match=r"through \d+ files, \d+ of 120 samples are bad"):
                list(stream)
        else:
            bad = {row.sample_id for batch in stream for row in batch.bad}
            assert len(bad) == len(verdicts(daemon)) >= 16
            assert stream.receipts[0].ok
