"""Numbers of opened streams: a stream is closed only when none of its batches is in production."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from streamd.core.spec import PixelId
from streamd.daemon.engine.engine import OpenStreams
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError, OtherPixelsError
from streamd.ipc.worker_messages import CachePlace, CloseStream, TransformFault, TransformPlace


@pytest.fixture
def opened(stream: ServedStream) -> OpenStreams:
    return OpenStreams([stream])


def test_workers_get_the_manifest_path_and_no_classes(stream: ServedStream) -> None:
    (opening,) = OpenStreams([stream]).make_open_commands()
    assert (opening.number, opening.manifest) == (0, str(stream.manifest_path))
    assert stream.spec.labels["label"].classes == ("dog", "cat")
    assert opening.spec.labels["label"].classes == ()


@pytest.fixture
def cached(stream: ServedStream, tmp_path: Path) -> ServedStream:
    return replace(stream, cache=CachePlace(str(tmp_path / "cache"), 9))


def test_workers_of_two_versions_may_write_one_cache(cached: ServedStream, tmp_path: Path) -> None:
    opened = OpenStreams([cached])
    opened.add_stream(cached)
    places = [opening.cache for opening in opened.make_open_commands()]
    assert places == [CachePlace(str(tmp_path / "cache"), 9, writable=True)] * 2
    opened.close_stream("train")
    opened.retire_stream_version(1)


def test_caches_that_the_workers_of_other_hosts_write_are_not_locked_here(cached: ServedStream) -> None:
    elsewhere, here = OpenStreams([cached], lock_caches=False), OpenStreams([cached])
    writable = [opened.make_open_command(0).cache for opened in (elsewhere, here)]
    assert [place is not None and place.writable for place in writable] == [False, True]
    for opened in (elsewhere, here):
        opened.close_stream("train")


def test_a_cache_that_another_daemon_writes_is_read_until_it_is_free(
    cached: ServedStream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("streamd"), "propagate", True)
    first, second = OpenStreams([cached]), OpenStreams([cached])
    (place,) = [opening.cache for opening in second.make_open_commands()]
    assert place is not None
    assert not place.writable
    assert "another streamd is writing to it" in caplog.text
    first.close_stream("train")
    now = second.make_open_command(second.add_stream(cached)).cache
    assert now is not None
    assert now.writable
    second.retire_stream_version(1)


def test_a_remark_of_several_workers_is_logged_once(
    opened: OpenStreams, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("streamd"), "propagate", True)
    for text in ("the disk is full", "the disk is full", "rows were damaged"):
        opened.log_worker_remark(0, text)
    opened.log_worker_remark(17, "of a stream that was closed")
    assert [record.getMessage() for record in caplog.records] == ["the disk is full", "rows were damaged"]


def test_a_new_version_is_opened_by_workers_before_batches_use_it(stream: ServedStream, opened: OpenStreams) -> None:
    assert opened.add_stream(replace(stream)) == 1
    assert [each.number for each in opened.make_open_commands()] == [0, 1]
    version = opened.add_batch_under_way("train")
    assert (version.number, version.stream) == (0, stream)


def test_served_streams_are_found_by_number(stream: ServedStream, opened: OpenStreams) -> None:
    number = opened.add_stream(stream)
    assert opened.served_streams() == {0: stream}
    assert opened.versions[number].stream is stream
    opened.make_version_current(number)
    assert opened.served_streams() == {number: stream}


def test_a_new_version_closes_the_one_before(stream: ServedStream, opened: OpenStreams) -> None:
    later = replace(stream)
    assert opened.make_version_current(opened.add_stream(later)) == [CloseStream(0)]
    version = opened.add_batch_under_way("train")
    assert version.number == 1
    assert version.stream is later


def test_a_stream_is_closed_after_its_last_batch(opened: OpenStreams) -> None:
    opened.add_batch_under_way("train")
    opened.add_batch_under_way("train")
    assert opened.close_stream("train") == []
    assert [each.number for each in opened.make_open_commands()] == [0]
    assert opened.remove_batch_under_way(0) == []
    assert opened.remove_batch_under_way(0) == [CloseStream(0)]
    assert opened.make_open_commands() == []
    with pytest.raises(KeyError):
        opened.add_batch_under_way("train")


def test_batches_that_end_close_nothing_that_is_still_served(opened: OpenStreams) -> None:
    opened.add_batch_under_way("train")
    assert opened.remove_batch_under_way(0) == []


def test_numbers_are_never_used_twice(stream: ServedStream, opened: OpenStreams) -> None:
    opened.close_stream("train")
    opened.make_version_current(opened.add_stream(stream))
    assert opened.add_batch_under_way("train").number == 1


async def test_a_worker_with_another_pipeline_is_an_error(opened: OpenStreams) -> None:
    opened.on_stream_opened(0, PixelId("one"))
    opened.on_stream_opened(0, PixelId("one"))
    assert await opened.wait_for_pixel_id(0) == "one"
    with pytest.raises(OtherPixelsError, match=r"makes different pixels from .* restart streamd"):
        opened.on_stream_opened(0, PixelId("other"))


async def test_a_late_report_about_a_closed_stream_is_ignored(opened: OpenStreams) -> None:
    opened.on_stream_opened(0, PixelId("one"))
    opened.close_stream("train")
    opened.on_stream_opened(0, PixelId("other"))


async def test_a_stream_that_cannot_be_opened_raises_its_reason(opened: OpenStreams) -> None:
    opened.on_stream_open_failed(0, "the folder is gone")
    with pytest.raises(ConfigError, match=r"streams\.train: cannot be opened: the folder is gone"):
        await opened.wait_for_pixel_id(0)
    opened.on_stream_opened(0, PixelId("late"))  # another worker came later, or luckier
    opened.on_stream_open_failed(7, "nobody knows this one")


async def test_a_later_worker_that_cannot_open_a_stream_changes_nothing(opened: OpenStreams) -> None:
    opened.on_stream_opened(0, PixelId("pixels"))
    opened.on_stream_open_failed(0, "the folder is gone")
    assert await opened.wait_for_pixel_id(0) == "pixels"


async def test_of_several_streams_the_first_refusal_is_raised_when_all_have_answered(
    stream: ServedStream, opened: OpenStreams
) -> None:
    numbers = {"a": opened.add_stream(stream), "b": opened.add_stream(stream), "c": opened.add_stream(stream)}
    asking = asyncio.ensure_future(opened.wait_for_pixel_ids(numbers))
    await asyncio.sleep(0)
    opened.on_stream_open_failed(numbers["b"], "the second")
    opened.on_stream_open_failed(numbers["c"], "the third")
    await asyncio.sleep(0)
    assert not asking.done()
    opened.on_stream_opened(numbers["a"], PixelId("one"))
    with pytest.raises(ConfigError, match="the second"):
        await asking


def test_current_transforms_are_those_of_the_served_streams(stream: ServedStream) -> None:
    first, second = (TransformPlace("m", "f", "/", digest) for digest in ("one", "two"))
    opened = OpenStreams([replace(stream, transform=first)])
    (opening,) = opened.make_open_commands()
    number = opened.add_stream(replace(stream, transform=second))
    assert (opening.transform, opened.current_transforms()) == (first, {first})
    opened.make_version_current(number)
    assert opened.current_transforms() == {second}


async def test_a_transform_that_ended_two_workers_closes_its_stream(
    opened: OpenStreams,
) -> None:
    ended = TransformFault(0, "it ends its process", is_certain=False)
    assert opened.count_transform_fault(ended) == ""
    assert len(opened.make_open_commands()) == 1
    assert opened.count_transform_fault(ended) == "streams.train.transform: it ends its process"
    assert opened.make_open_commands() == []
    assert opened.versions[0].failure_reason == "streams.train.transform: it ends its process"
    with pytest.raises(ConfigError, match=r"^streams\.train\.transform: it ends its process$"):
        await opened.wait_for_pixel_id(0)
    assert opened.count_transform_fault(TransformFault(7, "closed meanwhile", is_certain=True)) == ""


async def test_a_transform_that_never_returns_fails_at_once(opened: OpenStreams) -> None:
    opened.on_stream_opened(0, PixelId("pixels"))
    assert opened.count_transform_fault(TransformFault(0, "it takes too long", is_certain=True)) != ""
    assert await opened.wait_for_pixel_id(0) == "pixels"
