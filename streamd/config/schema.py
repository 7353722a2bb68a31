"""The configuration, as frozen models: what config.yaml may say, with its defaults and bounds.

    Config ── listen, memory, workers, ...
      └─ streams: name -> StreamConfig ── source (schema_sources), the rest (schema_parts)

A `ValueError` raised here is a whole sentence for the person who wrote the file; `explain` puts the place before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from streamd.config.fields import BatchSize, Endpoint, HostPort, Memory, Model, refused
from streamd.config.readers import (
    empty_when_null,
    read_listen,
    read_pace,
    read_remainder,
    read_transform,
    read_workers,
    short,
)
from streamd.config.schema_parts import (
    CHANNELS,
    BadSamplesConfig,
    CacheConfig,
    CurveConfig,
    EngineConfig,
    ImageConfig,
    LabelConfig,
    MeanStd,
    Normalize,
    PaceConfig,
    ShuffleConfig,
    SplitConfig,
)
from streamd.config.schema_sources import FILE_KINDS, Source
from streamd.limits import GIB
from streamd.spec import BadPolicy, Remainder

_REMAINDERS: Final[dict[bool | str, Remainder]] = {True: "drop", False: "keep", "pad": "pad"}


class StreamConfig(Model):
    """One stream."""

    name: str
    source: Source
    split: SplitConfig | None = None
    labels: Annotated[
        dict[str, Annotated[LabelConfig, BeforeValidator(short("type"))]], BeforeValidator(empty_when_null)
    ] = Field(default_factory=dict)
    image: ImageConfig = ImageConfig()
    batch_size: BatchSize = 32
    drop_remainder: Annotated[bool | Literal["pad"], BeforeValidator(read_remainder)] = False
    shuffle: Annotated[ShuffleConfig, BeforeValidator(short("kind"))] = ShuffleConfig()
    normalize: Normalize = "none"
    transform: Annotated[str | None, BeforeValidator(read_transform)] = None
    bad_samples: BadSamplesConfig = BadSamplesConfig()
    pace: Annotated[PaceConfig, BeforeValidator(read_pace)] = PaceConfig()
    cache: CacheConfig | None = None

    @property
    def bad_policy(self) -> BadPolicy:
        """The policy that counts: as written, else `mask` where shuffle is none, else `substitute`."""
        return self.bad_samples.policy or ("mask" if self.shuffle.kind == "none" else "substitute")

    @property
    def remainder(self) -> Remainder:
        """`drop_remainder` in a StreamSpec's words."""
        return _REMAINDERS[self.drop_remainder]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        problems = [*self._size_problems(), *self._channel_problems(), *self._part_problems()]
        if problems:
            raise refused(*problems)
        return self

    def _size_problems(self) -> list[tuple[tuple[str, ...], str]]:
        kind, size = self.source.kind, self.image.size
        if kind in FILE_KINDS and size is None:
            return [(("image", "size"), f"is missing; a {kind} holds images of any size, add size: [height, width]")]
        if kind in FILE_KINDS and size == "stored":
            return [(("image", "size"), f"found 'stored', which is for arrays; a {kind} needs [height, width]")]
        return []

    def _channel_problems(self) -> list[tuple[tuple[str, ...], str]]:
        mode, channels = self.image.mode, self.image.channels
        if isinstance(self.normalize, MeanStd):
            return [
                (("normalize", key), f"has {len(levels)} numbers, but mode {mode} has {channels} channel(s)")
                for key, levels in self.normalize.as_lists().items()
                if len(levels) != channels
            ]
        if self.normalize == "imagenet" and channels != CHANNELS["RGB"]:
            return [(("normalize",), f"imagenet has 3 channels, but mode {mode} has {channels}; use unit or numbers")]
        return []

    def _part_problems(self) -> list[tuple[tuple[str, ...], str]]:
        if self.source.part in {"train", "validation"} and self.split is None:
            return [(("source", "part"), "needs to know how to split; add split: {validation: 0.2} to the stream")]
        return []


class Config(Model):
    """All of config.yaml. `memory` in bytes. Paths are absolute; `base` is what relative ones were seen from."""

    curve: CurveConfig | None = None
    listen: Annotated[tuple[Endpoint, ...] | None, BeforeValidator(read_listen)] = None  # after curve: it needs it
    memory: Memory = GIB
    workers: Annotated[int | Literal["auto"], BeforeValidator(read_workers)] = "auto"
    engine: Annotated[EngineConfig, BeforeValidator(short("kind"))] = EngineConfig()
    monitor: HostPort | None = None
    streams: dict[str, StreamConfig]

    _base: Path = PrivateAttr(default_factory=Path.cwd)

    def model_post_init(self, context: Any, /) -> None:
        """Remembers the folder that `load` passes as the context."""
        if context:
            self._base = context["base"]

    @property
    def base(self) -> Path:
        """The folder that relative paths were seen from."""
        return self._base

    @property
    def worker_count(self) -> int:
        """Decode processes; `auto` is one for each processor core that this process may use."""
        return len(os.sched_getaffinity(0)) if self.workers == "auto" else self.workers

    @field_validator("listen")
    @classmethod
    def _tcp_needs_curve(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        open_door = next((endpoint for endpoint in value or () if endpoint.startswith("tcp://")), None)
        if open_door and info.data.get("curve", ...) is None:
            raise ValueError(f"{open_door} is open to the network; add curve: {{secret: FILE, clients: FOLDER}}")
        return value
