"""The sections of the configuration: one model for each key that holds a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streamd.config.fields import (
    Bytes,
    ChunkCount,
    Classes,
    Columns,
    ConfigModel,
    CropRatio,
    CropScale,
    DataPath,
    Fraction,
    Levels,
    Seconds,
    Seed,
    Size,
    Text,
    build_validation_error,
    resolve_path,
)
from streamd.config.parsers import parse_class_list, parse_from_setting, parse_image_size, parse_node_count
from streamd.config.units import format_yaml_value
from streamd.core.cluster_settings import ClusterSettings
from streamd.core.spec import BadPolicy, LabelType, Resize, Shuffle
from streamd.limits import MAX_NODES

NormalizeName = Literal["none", "unit", "minus_one_one", "imagenet"]

EngineKind = Literal["local", "ray"]
NodeCount = Annotated[
    Literal["auto"] | Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)], BeforeValidator(parse_node_count)
]

_LEAVE: Final = "remove it, or change the kind"
CHANNELS_OF_MODE: Final = {"RGB": 3, "L": 1}


def parse_npy_path(source: object) -> Path | None:
    """Returns the .npy file that `from` names, or None if it names another place."""
    return Path(source) if isinstance(source, str) and source.endswith(".npy") else None


def resolve_npy_path(source: object, info: ValidationInfo) -> object:
    """Returns the value of `from`; the path of a .npy file is resolved against the configuration's folder."""
    return source if (file := parse_npy_path(source)) is None else resolve_path(str(file), info)


class LabelConfig(ConfigModel):
    """One label. `source` is the value of `from`: columns, an array or a file; None stands for the label's own name."""

    type: LabelType
    """category and int become int64, float becomes float32, string becomes text, and tags become one 0 or 1 for each
    class."""
    source: Annotated[Text | Columns | None, BeforeValidator(parse_from_setting), AfterValidator(resolve_npy_path)] = (
        Field(default=None, alias="from")
    )
    """The column that holds the label, or several columns for a vector or for one 0 or 1 per class, or an array:
    file.npy, or /array in an HDF5 file. The default is the column with the label's name.
    """
    classes: Annotated[Classes | None, BeforeValidator(parse_class_list)] = None
    """Fixes the classes and their numbers: the first is 0. Without this key, the classes are taken from the data."""

    @property
    def file(self) -> Path | None:
        """The .npy file that holds the label; None if it comes from another place."""
        return parse_npy_path(self.source)

    @field_validator("classes")
    @classmethod
    def _check_classes_allowed_by_type(cls, value: tuple[int | str, ...] | None, info: ValidationInfo) -> object:
        kind = info.data.get("type", "category")
        if value is not None and kind not in {"category", "tags"}:
            raise ValueError(f"a label of type {kind} has no classes; use type: category, or leave classes out")
        return value


class WeightsConfig(ConfigModel):
    """The weight of each sample. `source` is the value of `from`; formats read weights as one more label."""

    source: Annotated[Text, AfterValidator(resolve_npy_path)] = Field(alias="from")
    """The column that holds one number, 0 or more, per sample; or an array: file.npy, or /array in an HDF5 file."""

    @property
    def type(self) -> Literal["weight"]:
        return "weight"

    @property
    def classes(self) -> None:
        """None: weights have no classes."""

    @property
    def file(self) -> Path | None:
        """The .npy file that holds the weights; None if they come from another place."""
        return parse_npy_path(self.source)


class ImageConfig(ConfigModel):
    """The form of every image. `size` is (height, width) in pixels, `stored` for arrays as they are, or None."""

    size: Annotated[Size | Literal["stored"] | None, BeforeValidator(parse_image_size)] = None
    """[height, width] in pixels, or `stored` for arrays, which are then served in their stored size."""
    mode: Literal["RGB", "L"] = "RGB"
    """RGB, or L for greyscale: 3 channels or 1."""
    resize: Resize = "stretch"
    """How an image of a different size is made to fit: stretch it, crop its middle, pad it with black, or use
    random_crop, which takes a different part of the image in every epoch.
    """
    exact: StrictBool = False
    """true decodes JPEGs at full size before shrinking them: slower, and a little sharper."""
    scale: CropScale = (0.08, 1.0)
    """For random_crop: the fraction of the image's area that is taken, [least, most]."""
    ratio: CropRatio = (3 / 4, 4 / 3)
    """For random_crop: width divided by height of the part that is taken, [least, most], before it is resized."""

    @model_validator(mode="after")
    def _check_bounds_only_for_random_crop(self) -> Self:
        stray = [key for key in ("scale", "ratio") if key in self.model_fields_set and self.resize != "random_crop"]
        if stray:
            why = f"belongs to resize: random_crop, but resize is {self.resize}; remove it, or change resize"
            raise build_validation_error(*(((key,), why) for key in stray))
        return self

    @property
    def channels(self) -> int:
        return CHANNELS_OF_MODE[self.mode]


class ShuffleConfig(ConfigModel):
    """The order of an epoch. For kind chunk, `chunk` samples are read together, and `buffer` chunks are mixed."""

    kind: Shuffle = "full"
    """full shuffles all samples, none keeps their order, chunk shuffles the chunks, and the samples of a few chunks at
    a time."""
    seed: Seed = 0
    """The same seed gives the same order, everywhere and every time."""
    chunk: ChunkCount = 3200
    """For kind chunk: how many samples are read together. The default for compressed hdf5 follows the chunks of the
    file."""
    buffer: ChunkCount = 16
    """For kind chunk: how many chunks are shuffled together. The default for compressed hdf5 is the number of chunks
    that a worker keeps in memory."""

    @model_validator(mode="after")
    def _check_chunk_keys_only_for_chunk(self) -> Self:
        stray = [key for key in ("chunk", "buffer") if key in self.model_fields_set and self.kind != "chunk"]
        if stray:
            raise build_validation_error(
                *(((key,), f"belongs to kind chunk, but kind is {self.kind}; {_LEAVE}") for key in stray)
            )
        return self


class MeanStd(ConfigModel):
    """Normalization by numbers: (pixel - mean) / std for each channel, pixels in 0-255."""

    mean: Levels
    """What is subtracted: one number per channel, in 0-255."""
    std: Levels
    """What the difference is divided by: one number per channel, in 0-255."""

    @field_validator("std")
    @classmethod
    def _check_std_nonzero(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not all(value):
            raise ValueError(
                f"found {format_yaml_value(value)}; pixels cannot be divided by a std of 0; use numbers above 0"
            )
        return value

    def as_lists(self) -> dict[str, list[float]]:
        """{"mean": [...], "std": [...]}, as a StreamSpec holds it."""
        return {"mean": list(self.mean), "std": list(self.std)}


class BadSamplesConfig(ConfigModel):
    """The treatment of samples that cannot be decoded. For `policy` None see `StreamConfig.bad_policy`."""

    policy: BadPolicy | None = None
    """substitute takes the next good image of the batch, mask gives zeros of weight 0, fail stops the stream. The
    default is substitute, or mask if shuffle is none.
    """
    max_fraction: Fraction = 0.01
    """The stream stops if more than this fraction of all samples, and more than 10 samples, are bad."""


class SplitConfig(ConfigModel):
    """The split: `validation` is the fraction held back, chosen by a hash of the relative name or the column `by`."""

    validation: Fraction = 0.2
    """The fraction that is held back, such as 0.2."""
    seed: Seed = 0
    """A different seed holds back different samples."""
    by: Text | None = None
    """A column of the table: rows with the same value stay in the same part."""


class PaceConfig(ConfigModel):
    """The pace of trainers. `lockstep_s`: seconds an epoch that leaders wait, so that each batch is decoded once.

    None stands for `free`.
    """

    lockstep_s: Annotated[Seconds | None, Field(alias="lockstep")] = None
    """How long the fastest trainers may wait per epoch, such as 10s."""


class CacheConfig(ConfigModel):
    """The cache of decoded samples in the folder `path`, in a file of at most `max_bytes` (None: no bound)."""

    path: DataPath
    """The folder of the cache. You may delete it at any time."""
    max_bytes: Annotated[Bytes | None, Field(alias="max")] = None
    """How large the cache may become, such as 20GiB; the first samples that fit are kept. Without this key, all are
    kept."""


def _check_cluster_address(address: str) -> str:
    if address.startswith("ray://"):
        raise ValueError(
            f"{address} is the address of Ray's client server, which has no shared memory; run streamd on a node of "
            "the cluster and use auto or host:port, such as head:6379"
        )
    if address not in {"auto", "local"} and not re.fullmatch(r"[^\s/:]+:\d+|\[[^\s/]+\]:\d+", address):
        raise ValueError(f"found {address!r}; use auto, local, or host:port, such as head:6379")
    return address


class CurveConfig(ConfigModel):
    """CURVE keys: the daemon's `secret` key file and the folder of the public keys of its `clients`."""

    secret: DataPath
    """The daemon's secret key file."""
    clients: DataPath
    """The folder of the clients' public keys."""


class EngineConfig(ConfigModel):
    """Where decoding happens. All keys but `kind` are for ray."""

    kind: EngineKind = "local"
    """local decodes on this host, ray on a cluster."""
    address: Annotated[Text, AfterValidator(_check_cluster_address)] | None = None
    """For kind ray: auto finds a running cluster, local starts one on this host, host:port joins that one."""
    nodes: NodeCount | None = None
    """For kind ray: how many nodes decode; auto means all."""
    num_cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    """For kind ray: the processors that each node's actor reserves, and its number of decode processes; 1 if left
    out."""
    resources: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """For kind ray: further resources that each node's actor reserves, such as {decode: 1}."""
    placement: Literal["SPREAD", "PACK"] | None = None
    """For kind ray: which nodes decode if not all do: SPREAD takes the idlest, PACK the busiest."""
    runtime_env: dict[str, Any] | None = None
    """For kind ray: the runtime environment of the actors, as Ray takes it."""

    @model_validator(mode="after")
    def _check_keys_only_for_ray(self) -> Self:
        keys = [name for name in type(self).model_fields if name != "kind" and getattr(self, name) is not None]
        if self.kind != "ray" and keys:
            raise build_validation_error(((keys[0],), f"belongs to kind ray, but kind is {self.kind}; {_LEAVE}"))
        return self

    @property
    def cluster_settings(self) -> ClusterSettings:
        """The cluster that decodes, with the defaults of keys that are left out."""
        count = self.nodes if isinstance(self.nodes, int) else None
        return ClusterSettings(
            self.address or "auto",
            count,
            self.num_cpus or 1.0,
            self.resources or {},
            self.placement or "SPREAD",
            self.runtime_env or {},
        )


def _find_normalize_union_tag(value: object) -> str:
    return "<values>" if isinstance(value, Mapping | MeanStd) else "<name>"


Normalize = Annotated[
    Annotated[NormalizeName, Tag("<name>")] | Annotated[MeanStd, Tag("<values>")],
    Discriminator(_find_normalize_union_tag),
]

SECTION_MODELS: Final[dict[str, type[ConfigModel]]] = {
    "weights": WeightsConfig,
    "image": ImageConfig,
    "shuffle": ShuffleConfig,
    "normalize": MeanStd,
    "bad_samples": BadSamplesConfig,
    "split": SplitConfig,
    "pace": PaceConfig,
    "cache": CacheConfig,
    "curve": CurveConfig,
    "engine": EngineConfig,
}
