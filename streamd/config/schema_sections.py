"""The sections of the configuration: one model for each key that holds a mapping.

The keys below `source` are those of the format of its kind: their models are built from the settings that it declares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Union, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    StrictBool,
    StrictInt,
    Tag,
    ValidationInfo,
    create_model,
)
from pydantic_core import CoreSchema, core_schema

from streamd.config.fields import (
    BoxCount,
    BrokenRule,
    Bytes,
    ChannelCount,
    ChunkCount,
    Classes,
    ConfigModel,
    CpuCount,
    CropRatio,
    CropScale,
    DataGlob,
    DataPath,
    Fraction,
    FrameOffsets,
    From,
    Identity,
    Levels,
    NodeCount,
    PixelRange,
    ResourceCount,
    ScalarValue,
    Seconds,
    Seed,
    Size,
    StdLevels,
    Text,
    ViewCount,
    VisibleShare,
    resolve_path,
)
from streamd.core.cluster_settings import ClusterSettings
from streamd.core.spec import BadPolicy, BoxUnit, ImageMode, LabelType, PixelType, Resize, Shuffle
from streamd.dataset.formats import FORMATS
from streamd.dataset.sources import (
    IS_PATTERN,
    ArrayForm,
    BoxFormat,
    ClassNumbers,
    DataSource,
    FrameEdge,
    RawNumbers,
    Scalar,
)

NormalizeName = Literal["none", "unit", "minus_one_one", "imagenet"]

EngineKind = Literal["local", "ray"]

_LEAVE: Final = "remove it, or change the kind"
# The keys of boxes and points: the field, and its name in a configuration.
_BOX_KEYS: Final = {"most": "max", "image": "of", "format": "format", "unit": "unit", "min_visible": "min_visible"}
BOX_TYPES: Final = frozenset({"boxes", "points"})
_KEYS_OF_TYPE: Final = {"boxes": frozenset(_BOX_KEYS), "points": frozenset({"most", "image", "unit"})}
CHANNELS_OF_MODE: Final = {"RGB": 3, "L": 1, "RGBA": 4, "index": 1}
_MOST_OF_TYPE: Final = {"uint8": 255, "uint16": 65535}


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
    class. boxes and points become float32 (max, 5) and (max, 2), in pixels of the delivered image.
    """
    source: Annotated[From, AfterValidator(resolve_npy_path)] = Field(default=None, alias="from")
    """The column that holds the label, or several columns for a vector or for one 0 or 1 per class, or an array:
    file.npy, or /array in an HDF5 file. The default is the column with the label's name.
    """
    classes: Classes | None = None
    """Fixes the classes and their numbers: the first is 0. Without this key, the classes are taken from the data."""
    most: Annotated[BoxCount | None, Field(alias="max")] = None
    """For boxes and points, required: the most that a sample may have. Each row of a batch has room for so many."""
    image: Annotated[Text | None, Field(alias="of")] = None
    """For boxes and points: the image that they follow; the default is the first image."""
    format: BoxFormat | None = None
    """For boxes: xyxy (left, top, right, bottom; the default), xywh (left, top, width, height) or cxcywh (the centre,
    width, height)."""
    unit: BoxUnit | None = None
    """For boxes and points: pixel (of the picture in its file; the default), or fraction (of its width and height)."""
    min_visible: VisibleShare | None = None
    """For boxes: a box of which less than this part of its area is left after cropping is left out; default 0. Boxes
    of which nothing is left are always left out."""

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """Yields the keys for the repr, which names manifests: the keys of boxes count only where they are given."""
        for name, value in super().__repr_args__():
            if name not in _BOX_KEYS or value is not None:
                yield name, value

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields the keys that do not go with the type, and those that it lacks."""
        for key, written in _BOX_KEYS.items():
            if key in self.model_fields_set and key not in _KEYS_OF_TYPE.get(self.type, ()):
                yield (written,), f"does not belong to a label of type {self.type}; remove it, or change the type"
        if self.type in _KEYS_OF_TYPE and self.most is None:
            yield ("max",), f"is missing; a label of type {self.type} needs the most that a sample may have: max: 100"
        if self.classes is not None and self.type not in {"category", "tags", "boxes"}:
            yield ("classes",), f"a label of type {self.type} has no classes; use type: category, or leave classes out"


class WeightsConfig(ConfigModel):
    """The weight of each sample. `source` is the value of `from`; formats read weights as one more label."""

    source: Annotated[Text, AfterValidator(resolve_npy_path)] = Field(alias="from")
    """The column that holds one number, 0 or more, per sample; or an array: file.npy, or /array in an HDF5 file."""


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

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields the keys that do not go with the kind."""
        for key in ("chunk", "buffer"):
            if key in self.model_fields_set and self.kind != "chunk":
                yield (key,), f"belongs to kind chunk, but kind is {self.kind}; {_LEAVE}"


class MeanStd(ConfigModel):
    """Normalization by numbers: (pixel - mean) / std for each channel, pixels in 0-255, or as stored in mode raw."""

    mean: Levels
    """What is subtracted: one number per channel, in 0-255; in mode raw, in the numbers of the files."""
    std: StdLevels
    """What the difference is divided by: one number per channel, in 0-255; in mode raw, in the numbers of the files."""

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
    """The stream stops if more than this fraction of all pictures, and more than 10, are bad; a file counts once,
    however many samples show it. Unless the key is written, a set of fewer than 50,000 may have up to 5 % bad pictures,
    and at most 500.
    """


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

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

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

    secret: DataPath | None = None
    """The daemon's secret key file; null means the service manager's credential streamd.key_secret."""
    clients: DataPath
    """The folder of the clients' public keys: who is removed from it is sent away within seconds."""


class ExpectConfig(ConfigModel):
    """The identities that a stream must have to be served. None: any."""

    order: Identity | None = None
    """The identity of the order: of files, labels, batch_size, drop_remainder, shuffle and seed."""
    pixels: Identity | None = None
    """The identity of the pixels: of image, transform and the installed decoders."""

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields a sentence if neither of the two is given."""
        if self.order is None and self.pixels is None:
            yield (), "expects nothing: give order and pixels, as `streamd check` prints them, or remove it"


class EngineConfig(ConfigModel):
    """Where decoding happens. All keys but `kind` are for ray."""

    kind: EngineKind = "local"
    """local decodes on this host, ray on a cluster."""
    address: Annotated[Text, AfterValidator(_check_cluster_address)] | None = None
    """For kind ray: auto finds a running cluster, local starts one on this host, host:port joins that one."""
    nodes: NodeCount | None = None
    """For kind ray: how many nodes decode; auto means all."""
    num_cpus: CpuCount | None = None
    """For kind ray: the processors that each node's actor reserves, and its number of decode processes; 1 if left
    out."""
    resources: dict[str, ResourceCount] | None = None
    """For kind ray: further resources that each node's actor reserves, such as {decode: 1}."""
    placement: Literal["SPREAD", "PACK"] | None = None
    """For kind ray: which nodes decode if not all do: SPREAD takes the idlest, PACK the busiest."""
    runtime_env: dict[str, Any] | None = None
    """For kind ray: the runtime environment of the actors, as Ray takes it."""

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields the first key that is for ray where the kind is another; one is told, since all have to go."""
        keys = [name for name in type(self).model_fields if name != "kind" and getattr(self, name) is not None]
        for key in keys[:1]:
            if self.kind != "ray":
                yield (key,), f"belongs to kind ray, but kind is {self.kind}; {_LEAVE}"

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


Normalize = Annotated[
    Annotated[NormalizeName, Tag("<name>")] | Annotated[MeanStd, Tag("<values>")],
    Discriminator(lambda value: "<values>" if isinstance(value, Mapping | MeanStd) else "<name>"),
]


class FramesConfig(ConfigModel):
    """The pictures of a clip: those of rows before and after the sample's own row of the table."""

    by: Text
    """The column that is equal within a sequence, such as the drive or the video that the pictures are from."""
    order: Text
    """The column by which each sequence is sorted, such as the number of the frame or the time."""
    offsets: FrameOffsets
    """The frames, as positions in the sequence from the sample's own row, which is 0: [-1, 0] adds the row before."""
    edge: FrameEdge = "repeat"
    """What becomes of a row at an end of its sequence that lacks a frame: repeat takes the nearest row instead, drop
    leaves the sample out.
    """


class ImageConfig(ConfigModel):
    """One image of every sample. `size` is (height, width) in pixels, `stored` for arrays as they are, or None.

    `source` is the value of `from`; None stands for the source's own picture, or for the name of the entry.
    """

    source: Text | None = Field(default=None, alias="from")
    """Where the image lies: a column of the table, a suffix in the tar, an array of the HDF5 file, a value of the LMDB
    samples, a .npy file, or a pattern of {dir}, {stem} and {name} of the sample's own file, such as
    "masks/{stem}.png". The default is the source's own picture, or the entry's name.
    """
    root: DataPath | None = None
    """The folder that the file names of `from` are relative to; default: that of the source."""
    like: Text | None = None
    """The name of another image, whose size and geometry this one follows: it is cropped as that one is."""
    size: Size = None
    """[height, width] in pixels, or `stored` for arrays, which are then served in their stored size."""
    mode: ImageMode = "RGB"
    """RGB, L for greyscale, or RGBA with the alpha of the file: 3, 1 or 4 channels. index keeps class numbers, as masks
    hold them: palette indices or grey levels. raw keeps the numbers of PNG, TIFF, .npy and arrays as they are stored.
    """
    channels: ChannelCount | None = None
    """For mode raw, which needs it: the number of channels, 1 to 32."""
    dtype: PixelType = "uint8"
    """The type of the numbers: uint8; uint16 for mode index with more than 256 classes; uint8, uint16 or float32 for
    mode raw, as the files have it."""
    range: PixelRange | None = None
    """For mode raw: the two numbers that normalize: unit maps to 0 and 1; default: the bounds of the dtype, or [0, 1]
    for float32."""
    resize: Resize = "stretch"
    """How an image of a different size is made to fit: stretch it, crop its middle, pad it with black, or use
    random_crop, which takes a different part of the image in every epoch.
    """
    fill: StrictInt | None = None
    """The number in padding and in rows without a sample; default: 0, and 255 for mode index (65535 for uint16)."""
    exact: StrictBool = False
    """true decodes JPEGs at full size before shrinking them: slower, and a little sharper."""
    scale: CropScale = (0.08, 1.0)
    """For random_crop: the fraction of the image's area that is taken, [least, most]."""
    ratio: CropRatio = (3 / 4, 4 / 3)
    """For random_crop: width divided by height of the part that is taken, [least, most], before it is resized."""
    views: ViewCount | None = None
    """The number of views of each picture, with random crops of their own: the image has the shape (B, views, H, W, C).
    It needs resize: random_crop, or a transform.
    """
    frames: FramesConfig | None = None
    """Makes the image a clip of several rows' pictures, all cropped alike: it has the shape (B, frames, H, W, C). It
    needs a table.
    """
    normalize: Normalize | None = None
    """How the model normalizes this image; default: the stream's normalize, if it fits the channels."""

    _base: Path = PrivateAttr(default=Path())

    def model_post_init(self, context: Any, /) -> None:
        """Keeps the configuration's folder, which `load` passes as the context, for .npy files."""
        if context:
            self._base = context["base"].absolute()

    def resolve_file(self) -> str:
        """Returns `from` as the path of .npy files, relative to `root`, or else to the configuration's folder."""
        return str((self.root or self._base) / Path(self.source or "").expanduser())

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields the keys that follow from `like`, and those that do not go with the mode or the dtype."""
        given, most = self.model_fields_set, _MOST_OF_TYPE.get(self.dtype)
        if self.like is not None:
            for key in ("resize", "scale", "ratio", "views", "frames"):
                if key in given:
                    yield (key,), f"follows from like: {self.like}; remove it"
        else:
            why = f"belongs to resize: random_crop, but resize is {self.resize}; remove it, or change resize"
            for key in ("scale", "ratio"):
                if key in given and self.resize != "random_crop":
                    yield (key,), why
        if self.dtype != "uint8" and self.mode not in {"index", "raw"}:
            yield ("dtype",), f"pixels of mode {self.mode} are uint8; remove it, or use mode: index or raw"
        if self.dtype == "float32" and self.mode == "index":
            yield ("dtype",), "class numbers are uint8 or uint16; use one of them, or mode: raw"
        if self.mode == "raw" and self.channels is None:
            yield ("channels",), "is missing; mode raw needs the number of channels that the files have"
        for key in ("channels", "range"):
            if self.mode != "raw" and getattr(self, key) is not None:
                yield (key,), f"belongs to mode raw, but mode is {self.mode}; remove it, or use mode: raw"
        if self.mode == "index" and self.normalize not in {None, "none"}:
            yield ("normalize",), "class numbers are not normalized; remove it"
        if self.mode in {"index", "raw"} and self.exact:
            yield ("exact",), "is for JPEG; numbers of other files are always exact: remove it"
        if self.fill is not None and most is not None and not 0 <= self.fill <= most:
            yield ("fill",), f"found {self.fill}; use a number from 0 to {most}, as {self.dtype} holds"

    @property
    def channel_count(self) -> int:
        """The channels of the image as it is served."""
        return CHANNELS_OF_MODE.get(self.mode, self.channels or 1)

    @property
    def filled_with(self) -> int:
        """The number in padding and in rows without a sample."""
        if self.fill is not None:
            return self.fill
        return _MOST_OF_TYPE.get(self.dtype, 0) if self.mode == "index" else 0

    @property
    def is_pattern(self) -> bool:
        """Whether `from` is a pattern of file names."""
        return self.source is not None and "{" in self.source

    @property
    def array_form(self) -> ArrayForm | None:
        """What the array of the image must hold; None for pixels of 8 bits."""
        if self.mode == "index":
            return ClassNumbers()
        if self.mode == "RGBA":
            return RawNumbers(CHANNELS_OF_MODE["RGBA"], "uint8")
        return RawNumbers(self.channel_count, self.dtype) if self.mode == "raw" else None

    def is_npy_of(self, source: DataSource) -> bool:
        """Whether the image lies in .npy files, beside a `source` of arrays or as that source does."""
        return self.source is not None and (source.kind == "npy" or parse_npy_path(self.source) is not None)

    def find_shown(self, images: Mapping[str, ImageConfig]) -> ImageConfig:
        """Returns the image whose size, geometry, views and frames this one has: itself, or the one it follows."""
        return self if self.like is None else images.get(self.like, self)


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
    "expect": ExpectConfig,
    "frames": FramesConfig,
}


# --- sources: one model for each kind, built from the settings that the format declares


# The type of a key in a configuration, by the type of the format's setting; other types are used as they are.
_READ_AS: Final[dict[Any, Any]] = {
    Path: DataPath,
    str: Text,
    tuple[float, float]: PixelRange,
    Mapping[str, Scalar]: dict[str, ScalarValue],
}
_KEY_TYPES: Final[dict[Any, Any]] = {**_READ_AS, **{each | None: read | None for each, read in _READ_AS.items()}}


class SourceModel(ConfigModel):
    """The keys below `source`, of one kind."""

    settings: ClassVar[type[DataSource]]

    def build_source(self) -> DataSource:
        """Returns the settings of the format, filled with the keys of this model."""
        return self.settings(**{name: value for name, value in self if name != "kind"})

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields what the format says of its own keys."""
        for key, sentence in self.build_source().find_setting_mistakes():
            yield (key,), sentence


def _build_source_model(settings: type[DataSource]) -> type[SourceModel]:
    """Returns the model of a kind: a key for each setting, whose text editors show as its description."""
    hints = get_type_hints(settings, include_extras=True)
    declared: Any = settings  # the settings of every format are a dataclass
    keys: dict[str, Any] = {"kind": (Literal.__getitem__(settings.kind), ...)}
    for each in fields(declared):
        if not each.init:
            continue
        kind, *marks = get_args(hints[each.name])
        about = next(mark for mark in marks if isinstance(mark, str))
        keys[each.name] = (
            DataGlob if IS_PATTERN in marks else _KEY_TYPES.get(kind, kind),
            Field(... if each.default is MISSING else each.default, description=about),
        )
    made: type[SourceModel] = create_model(settings.__name__, __base__=SourceModel, __doc__=settings.__doc__, **keys)
    made.settings = settings
    return made


SOURCE_MODELS: Final[dict[str, type[SourceModel]]] = {
    kind: _build_source_model(each.settings) for kind, each in FORMATS.items()
}
ENCODED_KINDS: Final = frozenset(kind for kind, model in SOURCE_MODELS.items() if model.settings.is_encoded)


class _FilledSource:
    """Makes pydantic validate by the models, and return the settings that they fill."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        models: Any = Annotated[Union[tuple(SOURCE_MODELS.values())], Field(discriminator="kind")]  # noqa: UP007 - of a tuple
        return core_schema.no_info_after_validator_function(SourceModel.build_source, handler.generate_schema(models))


FilledSource = Annotated[DataSource, _FilledSource()]
