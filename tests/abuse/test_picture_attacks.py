"""Files that are no pictures, or are made to break a decoder, cost the trainers of another stream nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import hostile_pictures
import pytest
from siege import Record, besiege
from support.daemon_process import stream_config, write_images

pytestmark = pytest.mark.timeout(300)


def serve_pictures(spoil: Callable[[Path], None]) -> Callable[[Path], dict[str, dict[str, object]]]:
    """A stream `pictures` over a folder of good pictures and what `spoil` adds."""

    def build(place: Path) -> dict[str, dict[str, object]]:
        folder = write_images(place / "pictures", {"cat": 30, "dog": 30}, size=(32, 32))
        spoil(folder)
        return {"pictures": stream_config(folder, bad_samples={"max_fraction": 0.9})}

    return build


@pytest.mark.abuse("23", "damaged and odd pictures in a stream that the attacker reads")
def test_damaged_pictures_cost_no_other_stream(record_property: Record) -> None:
    with besiege(streams=serve_pictures(hostile_pictures.add_damaged)) as siege:
        siege.withstand("read_pictures", rounds=3, is_reading=True)
        siege.end(record_property)


@pytest.mark.abuse("24", "bombs: huge headers, endless texts, 100,000 scans, at a daemon of two workers")
def test_bombs_cost_no_other_stream(record_property: Record) -> None:
    # A worker leaves no picture in the middle: with one worker, a bomb stops all others while it is decoded.
    with besiege(settings={"workers": 2}, streams=serve_pictures(hostile_pictures.add_bombs)) as siege:
        with siege.measure_loop_and_workers():
            siege.withstand("read_pictures", rounds=2, is_reading=True)
        siege.end(record_property)


@pytest.mark.abuse(
    "25", "other formats, a link to /etc/shadow, a pipe, /dev/zero and a file of 10 GiB posing as pictures"
)
def test_what_poses_as_a_picture_costs_no_other_stream(record_property: Record) -> None:
    with besiege(streams=serve_pictures(hostile_pictures.add_posing)) as siege:
        pictures = siege.place / "pictures"
        for name, target in (("0000", "/etc/shadow"), ("0001", "/dev/zero")):
            (pictures / "cat" / f"{name}.jpg").unlink()
            (pictures / "cat" / f"{name}.jpg").symlink_to(target)
        (pictures / "cat" / "0002.jpg").unlink()
        os.mkfifo(pictures / "cat" / "0002.jpg", 0o644)
        siege.withstand("read_pictures", rounds=2, is_reading=True)
        siege.end(record_property)


@pytest.mark.abuse("25", "a list that names files outside of its folder, beside the daemon's own")
def test_a_list_that_leads_outside_is_refused_by_name(record_property: Record) -> None:
    with besiege() as siege:
        (siege.place / "outside.jpg").write_bytes(b"not for this stream")
        (siege.place / "list.txt").write_text("cat/0000.jpg 0\n../outside.jpg 1\n/etc/shadow 1\n")
        source = {"kind": "filelist", "path": str(siege.place / "list.txt"), "root": str(siege.place / "data")}
        said = siege.check_configuration({"hostile": stream_config(siege.place, source=source)})
        record_property("saw", said)
        assert "line 2 names '../outside.jpg'" in said
        assert "line 3 '/etc/shadow'" in said
        siege.end(lambda *_: None)
