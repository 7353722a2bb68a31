"""From the configuration to the streams served: manifests made or reused, class lists shared, identities computed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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
from streamd.sources import Scanned, group_column, scan, share_classes, take_part
from streamd.spec import ImageSpec, OrderId, PixelId, StreamSpec, identity

Progress = Callable[[str, int], None]


def state_directory() -> Path:
    """Where manifests and verdicts are kept: $STATE_DIRECTORY under systemd, else the user's state folder."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    home = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(home) / "streamd"


def is_listed(config: Config, state: Path) -> bool:
    """Whether every stream of this configuration has its manifest; says of when, if so."""
    paths = _paths(config, state).values()
    if not all(path.exists() for path in paths):
        return False
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(path.stat().st_mtime for path in paths)))
    logs.info("manifest.reused", f"the samples are those listed on {made}; --rescan lists them anew")
    return True


def list_samples(config: Config, state: Path, progress: Progress) -> None:
    """Lists every stream's samples into its manifest and forgets verdicts on the old list. Raises ConfigError."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot keep state in {state}: {error.strerror}; set STATE_DIRECTORY to a folder of yours"
        ) from error
    paths, config_id = _paths(config, state), _config_id(config)
    for name, scanned in share_classes(_scan_all(config, progress)).items():
        paths[name].with_suffix(".bad.jsonl").unlink(missing_ok=True)
        manifest.write(paths[name], scanned, config_id=config_id)


def open_streams(config: Config, state: Path) -> list[ServedStream]:
    """Every stream of a configuration that is listed, its manifest mapped. Raises ConfigError."""
    paths = _paths(config, state)
    return [_serve(stream, paths[name]) for name, stream in config.streams.items()]


def _paths(config: Config, state: Path) -> dict[str, Path]:
    config_id = _config_id(config)
    return {name: state / f"{name}-{config_id[:16]}.manifest" for name in config.streams}


def _config_id(config: Config) -> str:
    """A digest over what decides the manifests; class lists are shared, so all streams enter into each."""
    parts = [
        f"{name} {stream.source!r} {stream.labels!r} {stream.split!r}"
        for name, stream in sorted(config.streams.items())
    ]
    return identity("streamd config 1", *parts)


def _scan_all(config: Config, progress: Progress) -> dict[str, Scanned]:
    """Each stream's samples. Parts of one source come from one listing: half the work, and none sees a file change."""
    wholes: dict[str, Scanned] = {}
    return {name: _scan(stream, wholes, progress) for name, stream in config.streams.items()}


def _scan(stream: StreamConfig, wholes: dict[str, Scanned], progress: Progress) -> Scanned:
    """A stream's samples, out of `wholes` if another stream has listed them."""
    started_s = time.monotonic()
    source = stream.source.model_copy(update={"part": None})
    key = f"{source!r} {stream.labels!r} {group_column(stream)!r}"
    if key not in wholes:
        wholes[key] = scan(stream, partial(progress, stream.name))
    scanned = take_part(stream, wholes[key])
    logs.info(
        "manifest.made",
        "listed the samples",
        stream=stream.name,
        samples=len(scanned.files),
        seconds=time.monotonic() - started_s,
    )
    return scanned


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
