"""Reloads over real lists of samples: calls to service and engine, and which bad samples are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.daemon_process import stream_config, write_images
from support.served_folder import change_times
from support.transform_programs import Write

from streamd.config.load import load_config
from streamd.config.locations import KeyLocations
from streamd.config.schema import Config
from streamd.core.sampler import BadSample
from streamd.core.spec import PixelId
from streamd.daemon.descriptor_allowance import AMPLE_ALLOWANCE, DescriptorAllowance, compute_descriptor_allowance
from streamd.daemon.reload import Reloader, log_served_streams
from streamd.daemon.streams.catalog import find_unlisted_streams, open_streams, write_sample_manifests
from streamd.daemon.streams.served_stream import ServedStream
from streamd.errors import ConfigError
from streamd.ipc.worker_messages import CachePlace

Settings = dict[str, Any]  # the keys of one stream


class Daemon:
    """Service and engine in one, with a list of the calls that a reload made, in order."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.streams: dict[str, ServedStream] = {}
        self.calls: list[str] = []
        self.unopenable: set[str] = set()  # streams that no worker can open
        self.stale: set[str] = set()  # streams whose transforms need new workers

    def read(self, streams: dict[str, Any], **settings: object) -> tuple[Config, list[ServedStream]]:
        config = load_config({"streams": streams, **settings})
        write_sample_manifests(config, self.state, lambda *_: None, names=find_unlisted_streams(config, self.state))
        return config, open_streams(config, self.state)

    def start(self, streams: dict[str, Any]) -> None:
        self.running, served = self.read(streams)
        self.streams = {stream.spec.name: stream for stream in served}

    def reload(self, streams: dict[str, Any], **settings: object) -> None:
        self.reload_with(lambda: self.read(streams, **settings))

    def reload_with(
        self, read: Callable[[], tuple[Config, list[ServedStream]]], allowance: DescriptorAllowance = AMPLE_ALLOWANCE
    ) -> bool:
        async def read_streams() -> tuple[Config, list[ServedStream]]:
            return read()

        daemon: Any = self
        return asyncio.run(Reloader(self.running, read_streams, daemon, daemon, allowance).reload_streams())

    def replace_stream_ending_sessions(self, name: str, stream: ServedStream | None, why: str) -> None:
        self.calls.append(f"change {name}: {why}" if stream else f"remove {name}")
        if stream:
            assert stream.spec.pixel_id == "pixels"
            self.streams[name] = stream
        else:
            del self.streams[name]

    def replace_stream_keeping_sessions(self, stream: ServedStream) -> None:
        self.calls.append(f"renew {stream.spec.name}")
        self.streams[stream.spec.name] = stream

    async def open_stream(self, stream: ServedStream) -> PixelId:
        self.calls.append(f"open {stream.spec.name}")
        if stream.spec.name in self.unopenable:
            raise ConfigError(f"streams.{stream.spec.name}: cannot be opened: its folder is gone")
        return PixelId("pixels")

    def needs_new_workers(self, streams: Iterable[ServedStream]) -> bool:
        return bool({stream.spec.name for stream in streams} & self.stale)

    async def open_streams_in_new_workers(self, streams: Sequence[ServedStream]) -> dict[str, PixelId]:
        names = [stream.spec.name for stream in streams]
        self.calls.append(f"new workers for {' and '.join(names)}")
        if self.unopenable & set(names):
            raise ConfigError("it raises")
        return {name: PixelId("pixels") for name in names}

    def close_stream(self, name: str) -> None:
        self.calls.append(f"close {name}")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "state")
    yield daemon
    daemon.streams.clear()


@pytest.fixture
def a(tmp_path: Path) -> Settings:
    return stream_config(write_images(tmp_path / "a", {"cat": 5, "dog": 6}, size=(8, 8)), labels={"a": "category"})


@pytest.fixture
def b(tmp_path: Path) -> Settings:
    return stream_config(write_images(tmp_path / "b", {"cat": 5, "emu": 6}, size=(8, 8)), labels={"b": "category"})


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What is logged, though a test before may have configured it away."""
    monkeypatch.setattr(logging.getLogger("streamd"), "propagate", True)
    caplog.set_level(logging.INFO, "streamd")
    return caplog


def test_only_changed_streams_are_opened_after_removed_ones_are_closed(
    daemon: Daemon, a: Settings, b: Settings
) -> None:
    daemon.start({"a": a, "b": b, "c": a})
    kept = daemon.streams["a"]
    daemon.reload({"d": b, "b": b | {"batch_size": 4}, "a": a})
    removed, closed, opened, changed, *added = daemon.calls
    assert [removed, closed, opened, *added] == ["remove c", "close c", "open b", "open d", "change d: "]
    assert changed.startswith("change b: stream 'b' has a different order now: batch_size was 8 and is 4")
    assert daemon.streams["a"] is kept


def test_a_stream_that_no_worker_can_open_keeps_its_version_and_others_change(
    daemon: Daemon, a: Settings, b: Settings, log: pytest.LogCaptureFixture
) -> None:
    daemon.start({"a": a, "b": b})
    before = daemon.streams["a"]
    daemon.unopenable.add("a")

    def read() -> tuple[Config, list[ServedStream]]:
        config, streams = daemon.read({"a": a | {"batch_size": 4}, "b": b | {"batch_size": 4}})
        config._places = KeyLocations("config.yaml", {("streams", "a"): 3}, {})
        return config, streams

    daemon.reload_with(read)
    assert daemon.streams["a"] is before
    assert daemon.streams["b"].spec.batch_size == 4
    assert (
        "config.yaml:3: streams.a: cannot be opened: its folder is gone; if the stream was served before, it is still "
        "served as it was"
    ) in log.text
    says = "serving the configuration as it was read, except for what failed"
    done = next(record for record in log.records if says in record.getMessage())
    assert "changed=b" in done.getMessage() or "b" in str(done.__dict__)


def test_more_tolerance_for_bad_samples_and_another_cache_end_no_session(
    daemon: Daemon, a: Settings, tmp_path: Path
) -> None:
    daemon.start({"a": a})
    was = daemon.streams["a"]
    cache = {"path": str(tmp_path / "cache"), "max": "1GiB"}
    daemon.reload({"a": a | {"bad_samples": {"max_fraction": 0.5}, "cache": cache}})
    assert daemon.calls == ["open a", "renew a"]
    now = daemon.streams["a"]
    assert (now.max_bad_fraction, now.quarantine, now.manifest) == (0.5, was.quarantine, was.manifest)
    assert now.cache == CachePlace(str(tmp_path / "cache"), 1 << 30)


def test_an_unchanged_list_is_kept_with_its_bad_samples(daemon: Daemon, a: Settings, b: Settings) -> None:
    daemon.start({"a": a})
    kept = daemon.streams["a"]
    kept.quarantine.append_new_bad_samples([BadSample(3, "bad")])
    daemon.reload({"a": a, "c": b | {"labels": {"a": "category"}}, "b": b})
    assert "a" in daemon.streams
    assert daemon.calls[0].startswith("open a"), "the classes of b's folder are a's now, too"

    daemon.calls.clear()
    kept = daemon.streams["a"]
    kept.quarantine.append_new_bad_samples([BadSample(4, "bad")])
    daemon.reload({"a": a, "again": a, "c": b | {"labels": {"a": "category"}}, "b": b})
    assert daemon.calls == ["open again", "change again: "]
    assert daemon.streams["a"] is kept
    kept.quarantine.append_new_bad_samples([BadSample(5, "worse")])
    _, (relisted, *_) = daemon.read({"a": a, "again": a, "c": b | {"labels": {"a": "category"}}, "b": b})
    assert relisted.manifest_path != kept.manifest_path
    assert relisted.quarantine.reasons == {4: "bad", 5: "worse"}


def test_more_streams_than_descriptors_allow_change_nothing(
    daemon: Daemon, a: Settings, b: Settings, log: pytest.LogCaptureFixture
) -> None:
    daemon.start({"a": a})
    allowed = compute_descriptor_allowance(268, workers=1, streams=1, is_monitored=False)
    assert not daemon.reload_with(lambda: daemon.read({"a": a, "b": b}), allowed)
    assert daemon.calls == []
    assert "1 more stream would need 7 descriptors, but of 268 only 1 are not reserved for trainers" in log.text


def test_changed_files_end_the_sessions_of_a_stream_that_is_listed_again(daemon: Daemon, a: Settings) -> None:
    daemon.start({"a": a})
    daemon.streams["a"].quarantine.append_new_bad_samples([BadSample(3, "bad")])
    change_times(daemon.streams["a"].manifest.root / "cat" / "0000.jpg", 10**18)
    daemon.reload({"a": a, "again": a})
    assert "its files were listed again" in daemon.calls[1]
    assert daemon.streams["a"].quarantine.reasons == {}


def test_bad_samples_found_by_the_old_version_reach_the_new_one(daemon: Daemon, a: Settings) -> None:
    daemon.start({"a": a})
    was = daemon.streams["a"]
    daemon.reload({"a": a | {"normalize": "unit"}})
    was.quarantine.append_new_bad_samples([BadSample(3, "bad")])
    assert daemon.streams["a"].quarantine.reasons == {3: "bad"}


def test_a_list_made_again_has_no_bad_samples_of_the_removed_one(daemon: Daemon, a: Settings) -> None:
    daemon.start({"a": a})
    was = daemon.streams["a"]
    was.quarantine.append_new_bad_samples([BadSample(3, "bad")])
    was.manifest_path.unlink()
    write_images(was.manifest.root, {"ant": 1}, size=(8, 8))
    daemon.reload({"a": a})
    assert (daemon.streams["a"].spec.samples, daemon.streams["a"].quarantine.reasons) == (12, {})


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (
            ConfigError("config.yaml:1: one mistake\nconfig.yaml:2: another"),
            ["config.yaml:1: one mistake", "config.yaml:2: another"],
        ),
        (OSError(28, "No space left on device"), ["[Errno 28] No space left on device"]),
    ],
    ids=["mistakes in the configuration", "state that cannot be written"],
)
def test_an_error_changes_nothing_and_every_line_of_it_is_logged(
    daemon: Daemon, a: Settings, log: pytest.LogCaptureFixture, error: Exception, lines: list[str]
) -> None:
    def read() -> tuple[Config, list[ServedStream]]:
        raise error

    daemon.start({"a": a})
    before = dict(daemon.streams)
    assert not daemon.reload_with(read)
    assert daemon.streams == before
    assert daemon.calls == []
    errors = [record.getMessage() for record in log.records if record.levelno == logging.ERROR]
    assert errors == [*lines, "nothing was changed; fix the configuration and send SIGHUP again"]


def test_settings_that_need_a_restart_are_named_and_the_rest_is_reloaded(
    daemon: Daemon, a: Settings, log: pytest.LogCaptureFixture
) -> None:
    daemon.start({"a": a})
    daemon.reload({"a": a})
    assert "until the daemon is restarted" not in log.text
    daemon.reload({"a": a | {"batch_size": 4}}, memory="2MiB", workers=1)
    assert "memory, workers: unchanged until the daemon is restarted" in log.text
    assert daemon.streams["a"].spec.batch_size == 4


def test_a_stream_with_one_class_per_batch_is_warned_of(
    daemon: Daemon, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    folder = write_images(tmp_path / "sorted", {"cat": 16, "dog": 16}, size=(8, 8))
    chunks = {"kind": "chunk", "chunk": 8, "buffer": 1}
    config, streams = daemon.read(
        {
            name: stream_config(folder, shuffle=shuffle)
            for name, shuffle in (("poor", chunks), ("kept", "none"), ("good", "full"))
        }
    )
    log_served_streams(streams, config)
    (warning,) = [each.getMessage() for each in log.records if each.levelno == logging.WARNING]
    assert "batches are poorly mixed: their shuffle score is 0.00" in warning
    assert "streamd pack poor DEST --shuffle" in warning


def test_a_stream_too_large_to_subscribe_to_is_warned_of(
    daemon: Daemon, a: Settings, log: pytest.LogCaptureFixture
) -> None:
    config, streams = daemon.read({"a": a | {"image": {"size": [900, 900]}}}, memory="1MiB", workers=1)
    log_served_streams(streams, config)
    assert "nobody can subscribe" in log.text


@pytest.fixture
def transformed(a: Settings, b: Settings, program: Write, monkeypatch: pytest.MonkeyPatch) -> dict[str, Settings]:
    """Three streams, of which two have transforms of their own."""
    monkeypatch.chdir(program("one", "").parent)
    program("two", "")
    return {"a": a | {"transform": "one:f"}, "b": b | {"transform": "two:f"}, "c": a}


def test_an_edited_transform_changes_its_stream_though_the_configuration_is_the_same(
    daemon: Daemon, transformed: dict[str, Settings], program: Write
) -> None:
    daemon.start(transformed)
    program("two", "# edited")
    daemon.reload(transformed)
    opened, changed = daemon.calls
    assert opened == "open b"
    assert changed.startswith("change b: stream 'b' changed: transform differs; subscribe again: its order is the same")


def test_streams_whose_transforms_need_new_workers_are_opened_in_them_together(
    daemon: Daemon, transformed: dict[str, Settings], program: Write
) -> None:
    daemon.start(transformed)
    daemon.stale = {"b"}
    program("one", "# edited")
    program("two", "# edited")
    daemon.reload(transformed | {"c": transformed["c"] | {"batch_size": 4}})
    assert [told.split(":")[0] for told in daemon.calls] == [
        "new workers for a and b", "change a", "change b", "open c", "change c",
    ]  # fmt: skip


def test_streams_opened_together_all_keep_their_version_when_one_fails(
    daemon: Daemon, transformed: dict[str, Settings], program: Write, log: pytest.LogCaptureFixture
) -> None:
    daemon.start(transformed)
    before = dict(daemon.streams)
    daemon.stale, daemon.unopenable = {"b"}, {"b"}
    program("one", "# edited")
    program("two", "# edited")
    daemon.reload(transformed | {"c": transformed["c"] | {"batch_size": 4}})
    assert (daemon.streams["a"], daemon.streams["b"]) == (before["a"], before["b"])
    assert daemon.streams["c"].spec.batch_size == 4
    assert "it raises; if the stream was served before, it is still served as it was" in log.text


def test_bad_samples_belong_to_the_source_of_the_transform_that_found_them(
    daemon: Daemon, transformed: dict[str, Settings], program: Write
) -> None:
    daemon.start(transformed)
    daemon.streams["a"].quarantine.append_new_bad_samples([BadSample(0, "transform raised ValueError")])
    program("one", "# edited")
    daemon.reload(transformed)
    assert daemon.streams["a"].quarantine.reasons == {}
    program("one", "")
    daemon.reload(transformed)
    assert daemon.streams["a"].quarantine.reasons == {0: "transform raised ValueError"}


# --- the identities that other hosts have


def test_a_reload_to_another_order_than_expected_changes_nothing(
    daemon: Daemon, a: Settings, log: pytest.LogCaptureFixture
) -> None:
    daemon.start({"a": a})
    order = daemon.streams["a"].spec.order_id

    def read() -> tuple[Config, list[ServedStream]]:
        return daemon.read({"a": a | {"batch_size": 4}}, expect={"a": {"order": order}})

    assert not daemon.reload_with(read)
    assert daemon.calls == []
    assert f"expect.a.order: {order} is expected" in log.text


def test_a_reload_that_expects_other_pixels_of_a_kept_stream_changes_nothing(
    daemon: Daemon, a: Settings, log: pytest.LogCaptureFixture
) -> None:
    daemon.start({"a": a})
    daemon.reload({"a": a}, expect={"a": {"pixels": "f" * 32}})
    assert daemon.calls == []
    assert f"expect.a.pixels: {'f' * 32} are expected" in log.text


def test_a_reload_that_expects_what_is_served_keeps_the_sessions(daemon: Daemon, a: Settings) -> None:
    daemon.start({"a": a})
    daemon.reload({"a": a}, expect={"a": {"order": daemon.streams["a"].spec.order_id}})
    assert daemon.calls == ["open a", "renew a"]
    assert daemon.streams["a"].expected is not None
