"""A stream that is not the one of the other hosts is refused, and both identities are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import stream_config, write_images
from support.local_engine import running
from support.served_folder import file_of

from streamd.config.load import load_config
from streamd.config.schema_sections import ExpectConfig
from streamd.core.sampler import BadSample
from streamd.core.spec import OrderId, PixelId
from streamd.daemon.streams.catalog import open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream, explain_other_order, explain_other_pixels
from streamd.decode.pixel_id import compute_pixel_id
from streamd.errors import ConfigError

HERE, THERE = "a" * 32, "b" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", {"cat": 20}, size=(8, 8))


def open_expecting(folder: Path, expect: dict[str, Any] | None) -> ServedStream:
    state = folder.parent / "state"
    config = load_config({"streams": {"train": stream_config(folder)}, "expect": expect and {"train": expect}})
    if not state.exists():
        write_sample_manifests(config, state, lambda *_: None)
    (stream,) = open_streams(config, state)
    return stream


def test_another_identity_is_explained_with_both_values() -> None:
    expected = ExpectConfig(order=HERE, pixels=THERE)
    assert explain_other_order(expected, "train", OrderId(HERE)) is None
    assert explain_other_pixels(expected, "train", PixelId(THERE)) is None
    order, pixels = (
        explain_other_order(expected, "train", OrderId("c")),
        explain_other_pixels(expected, "train", PixelId("d")),
    )
    assert order is not None
    assert order.startswith(f"expect.train.order: {HERE} is expected, but the files, labels and settings of this host")
    assert "give c;" in order
    assert pixels is not None
    assert pixels.startswith(f"expect.train.pixels: {THERE} are expected, but this installation makes d;")


def test_what_is_not_expected_may_be_anything() -> None:
    assert explain_other_order(ExpectConfig(pixels=HERE), "train", OrderId(THERE)) is None
    assert explain_other_pixels(ExpectConfig(order=HERE), "train", PixelId(THERE)) is None


def test_a_stream_of_another_order_is_not_opened(folder: Path) -> None:
    found = open_expecting(folder, None).spec.order_id
    assert open_expecting(folder, {"order": found}).spec.order_id == found
    with pytest.raises(ConfigError, match=f"expect.train.order: {HERE} is expected, but .* give {found};"):
        open_expecting(folder, {"order": HERE})


@pytest.mark.long
async def test_a_stream_of_other_pixels_is_refused_by_the_engine(folder: Path) -> None:
    stream = open_expecting(folder, {"pixels": HERE})
    found = compute_pixel_id(stream.spec.image)
    async with running(stream) as rig:
        with pytest.raises(ConfigError, match=f"expect.train.pixels: {HERE} are expected, but .* makes {found};"):
            await rig.engine.wait_for_pixel_ids()


@pytest.mark.long
async def test_with_expect_a_missing_file_stops_the_stream_by_name_and_is_no_verdict(folder: Path) -> None:
    stream = open_expecting(folder, {"order": open_expecting(folder, None).spec.order_id})
    missing = int(stream.compute_planned_ids(0, 0)[3])
    file_of(stream, missing).unlink()
    async with running(stream) as rig:
        rig.produce()
        reason = await rig.failure()
    assert reason.startswith(
        f"{stream.format_file_name(missing)} cannot be read: No such file or directory; with `expect`"
    )
    assert stream.quarantine.reasons == {}


@pytest.mark.long
async def test_with_expect_an_image_that_cannot_be_decoded_is_a_verdict_on_its_bytes(folder: Path) -> None:
    (folder / "cat" / "0003.jpg").write_bytes(b"no image")
    stream = open_expecting(folder, {"order": open_expecting(folder, None).spec.order_id})
    index = next(index for index in range(3) if 3 in stream.compute_planned_ids(0, index))
    async with running(stream) as rig:
        rig.produce(0, index)
        await rig.filled()
    (verdict,) = stream.quarantine.list_bad_samples()
    assert (verdict.sample_id, verdict.of_bytes) == (3, True)


@pytest.mark.long
async def test_without_expect_a_missing_file_is_a_verdict_that_stays_on_this_host(folder: Path) -> None:
    stream = open_expecting(folder, None)
    missing = int(stream.compute_planned_ids(0, 0)[3])
    file_of(stream, missing).unlink()
    async with running(stream) as rig:
        rig.produce()
        await rig.filled()
    assert stream.quarantine.list_bad_samples() == [BadSample(missing, "No such file or directory", of_this_host=True)]


def test_verdicts_of_this_hosts_copy_do_not_count_with_expect(folder: Path) -> None:
    stream = open_expecting(folder, None)
    verdicts = [BadSample(3, "a damaged JPEG"), BadSample(4, "No such file or directory", of_this_host=True)]
    stream.quarantine.append_new_bad_samples(verdicts)
    assert open_expecting(folder, None).quarantine.list_bad_samples() == verdicts
    assert open_expecting(folder, {"order": stream.spec.order_id}).quarantine.list_bad_samples() == verdicts[:1]
