"""From the configuration to the streams served: manifests made or reused, class lists shared, identities computed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from streamd import logs, manifest
from streamd.config import Config, StreamConfig
from streamd.errors import ConfigError
from streamd.manifest import Manifest
from streamd.plan import PLAN_VERSION, Order
from streamd.quarantine import Quarantine
from streamd.served import ServedStream
from streamd.sources import scan, share_classes
from streamd.spec import ImageSpec, OrderId, PixelId, StreamSpec, identity

Progress = Callable[[str, int], None]


def state_directory() -> Path:
    """Where manifests and verdicts are kept: $STATE_DIRECTORY under systemd, else the user's state folder."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    home = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(home) / "streamd"


def open_streams(config: Config, state: Path, *, rescan: bool, progress: Progress) -> list[ServedStream]:
    """Every stream of the configuration, its manifest mapped. Raises ConfigError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot keep state in {state}: {error.strerror}; set STATE_DIRECTORY to a folder of yours"
        ) from error
    config_id = _config_id(config)
    paths = {name: state / f"{name}-{config_id[:16]}.manifest" for name in config.streams}
    if rescan or not all(path.exists() for path in paths.values()):
        _scan_all(config, paths, config_id, progress)
    else:
        _note_reuse(paths.values())
    return [_serve(stream, paths[name]) for name, stream in config.streams.items()]


def _config_id(config: Config) -> str:
    """A digest over what decides the manifests; class lists are shared, so all streams enter into each."""
    parts = [
        f"{name} {stream.source!r} {stream.labels!r} {stream.split!r}"
        for name, stream in sorted(config.streams.items())
    ]
    return identity("streamd config 1", *parts)


def _scan_all(config: Config, paths: dict[str, Path], config_id: str, progress: Progress) -> None:
    scans = {}
    for name, stream in config.streams.items():
        started_s = time.monotonic()
        scans[name] = scan(stream, partial(progress, name))
        logs.info(
            "manifest.made",
            "listed the samples",
            stream=name,
            samples=len(scans[name].files),
            seconds=time.monotonic() - started_s,
        )
    for name, scanned in share_classes(scans).items():
        paths[name].with_suffix(".bad.jsonl").unlink(missing_ok=True)
        manifest.write(paths[name], scanned, config_id=config_id)


def _note_reuse(paths: Iterable[Path]) -> None:
    oldest_s = min(path.stat().st_mtime for path in paths)
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(oldest_s))
    logs.info("manifest.reused", f"the samples are those listed on {made}; --rescan lists them anew")


def _serve(stream: StreamConfig, path: Path) -> ServedStream:
    listed = Manifest.open(path)
    if not listed.samples:
        raise ConfigError(f"streams.{stream.name}.source: no samples")
    spec = _spec(stream, listed)
    if spec.batches == 0:
        raise ConfigError(
            f"streams.{stream.name}: {spec.samples} samples do not fill one batch of {spec.batch_size}, and "
            "drop_remainder is true; set drop_remainder: false or a smaller batch_size"
        )
    quarantine = Quarantine(path.with_suffix(".bad.jsonl"))
    quarantine.load()
    return ServedStream(spec, path, listed, Order.of(spec), quarantine, stream.bad_samples.max_fraction)


def _spec(stream: StreamConfig, listed: Manifest) -> StreamSpec:
    size = stream.image.size
    if not isinstance(size, tuple):
        raise ConfigError(f"streams.{stream.name}.image.size: give [height, width]")
    batch_size, remainder = stream.batch_size, stream.remainder
    whole, rest = divmod(listed.samples, batch_size)
    spec = StreamSpec(
        name=stream.name,
        samples=listed.samples,
        batch_size=batch_size,
        batches=whole + bool(rest and remainder != "drop"),
        image=ImageSpec(size[0], size[1], stream.image.channels, stream.image.resize, stream.image.exact),
        labels=listed.labels,
        normalize=stream.normalize if isinstance(stream.normalize, str) else stream.normalize.as_lists(),
        shuffle=stream.shuffle.kind,
        seed=stream.shuffle.seed,
        remainder=remainder,
        bad_policy=stream.bad_policy,
        order_id=OrderId(""),
        pixel_id=PixelId(""),
    )
    return replace(spec, order_id=_order_id(spec, listed.content_id))


def _order_id(spec: StreamSpec, content_id: str) -> OrderId:
    parts = (content_id, spec.batch_size, spec.remainder, spec.shuffle, spec.seed, PLAN_VERSION)
    return OrderId(identity("streamd order 1", msgspec.json.encode(parts)))
