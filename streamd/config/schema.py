"""The configuration as frozen models: the keys of config.yaml, with their defaults and bounds.

    Config ── listen, memory, workers, ...
      └─ streams: name -> StreamConfig ── source and the rest (schema_sections)

A `ValueError` raised here is a whole sentence for the author of the file; `load` puts the place before it.

The JSON schema is made from the models. Editors use it to complete keys, explain them and underline mistakes. It
accepts what the models accept, including short forms and `like`. Rules that a schema cannot express (means that fit the
mode, a `like` of a stream that exists) are left to `load`. It is written in draft 7, which every editor supports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, PrivateAttr, ValidationInfo, field_validator, model_validator

from streamd.config.fields import (
    BatchSize,
    BrokenRule,
    ConfigModel,
    Endpoint,
    HostPort,
    Memory,
    Remainder,
    Text,
    Transform,
    Workers,
    build_refusal,
)
from streamd.config.images import build_image_sources, list_image_paths, takes_own_picture
from streamd.config.locations import KeyLocations
from streamd.config.rules import list_stream_rules
from streamd.config.schema_sections import (
    ENCODED_KINDS,
    SOURCE_MODELS,
    BadSamplesConfig,
    CacheConfig,
    CurveConfig,
    EngineConfig,
    EngineKind,
    ExpectConfig,
    FilledSource,
    ImageConfig,
    LabelConfig,
    Normalize,
    PaceConfig,
    ShuffleConfig,
    SplitConfig,
    WeightsConfig,
    parse_npy_path,
)
from streamd.config.units import format_bytes
from streamd.core.host import count_processors, measure_memory
from streamd.core.spec import ONLY_IMAGE, BadPolicy, LabelType, RemainderPolicy, Shuffle
from streamd.dataset.sources import BoxRule, DataSource, LabelSource, ListingRequest, SplitRule
from streamd.errors import suggest_name
from streamd.limits import GIB

JsonSchema = dict[str, Any]
_REMAINDERS: Final[dict[bool | str, RemainderPolicy]] = {True: "drop", False: "keep", "pad": "pad"}
_NAME_PATTERN: Final = "^[A-Za-z0-9_.-]{1,64}$"
_DROPPED_KEYS: Final = ("title", "discriminator")  # names of our classes, and a keyword that draft 7 does not have

# Short forms: one word, or one value, that stands for a mapping or a list.


def _accept_word(key: str, words: Any, refused_as: str = "") -> BeforeValidator:
    """Returns a validator that takes a plain string for `{key: string}`; `words` is the type of the short form.

    With `refused_as`, what is neither text nor a mapping is refused by this name.
    """

    def expand_word(value: object) -> object:
        if refused_as and value is not None and not isinstance(value, str | Mapping):
            raise build_refusal(refused_as)
        return {key: value} if isinstance(value, str) else value

    return BeforeValidator(expand_word, json_schema_input_type=words)


def _parse_pace(value: object) -> object:
    if value != "free" and (not isinstance(value, Mapping) or not value):
        raise build_refusal("pace")
    return {} if value == "free" else value


def _parse_listen(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    if value is not None and not (isinstance(value, list | tuple) and value):
        raise build_refusal("listen")
    return value


LabelKey = Annotated[LabelConfig, _accept_word("type", LabelType | LabelConfig)]
ShuffleKey = Annotated[ShuffleConfig, _accept_word("kind", Shuffle | ShuffleConfig)]
EngineKey = Annotated[EngineConfig, _accept_word("kind", EngineKind | EngineConfig)]
WeightsKey = Annotated[WeightsConfig | None, _accept_word("from", Text | WeightsConfig | None, "weights")]
PaceKey = Annotated[PaceConfig, BeforeValidator(_parse_pace, json_schema_input_type=Literal["free"] | PaceConfig)]
ListenKey = Annotated[
    tuple[Endpoint, ...] | None, BeforeValidator(_parse_listen, json_schema_input_type=Endpoint | list[Endpoint] | None)
]


def _build_label_source(label: LabelConfig | WeightsConfig) -> LabelSource:
    """Returns where a label or the weights lie, in the form that dataset formats read."""
    file = parse_npy_path(label.source)
    if isinstance(label, WeightsConfig):
        return LabelSource("weight", label.source, file, None, None)
    boxes = None
    if label.most is not None:
        unit, visible = label.unit or "pixel", label.min_visible or 0.0
        boxes = BoxRule(label.most, label.format or "xyxy", unit, visible, label.image or "")
    return LabelSource(label.type, label.source, file, label.classes, boxes)


class StreamConfig(ConfigModel):
    """A stream: the batches that trainers subscribe to by its name."""

    name: str
    source: FilledSource
    """Where the samples are."""
    split: SplitConfig | None = None
    """Holds back a part of the samples. A source with part: train or part: validation takes one of the two parts."""
    labels: dict[Text, LabelKey] | None = None
    """The labels: name: category | int | float | string | tags, or {type: ..., from: COLUMN}, or {type: boxes, max:
    100} and {type: points, max: 17}. A folder of classes has one label, which is called label unless you give another
    name here. {} serves the images without labels.
    """
    weights: WeightsKey = None
    """The weight of each sample, 0 or more: a column of numbers, or a file.npy. Without this key, every sample has
    weight 1. Models use the weights as sample weights.
    """
    image: ImageConfig = ImageConfig()
    """The form in which every image is served; size: [height, width] is required for files."""
    images: dict[Text, ImageConfig] | None = None
    """Several images a sample, such as a photo and its mask: the name of each, and the keys of image under it. They
    take the place of image.
    """
    batch_size: BatchSize = 32
    """Images in a batch."""
    drop_remainder: Remainder = False
    """The short last batch of an epoch: false keeps it, true drops it, pad fills it with rows of weight 0."""
    shuffle: ShuffleKey = ShuffleConfig()
    """The order of an epoch: full, none, chunk, or {kind: full, seed: 0}. The same seed gives the same order
    everywhere. The default kind is chunk for hdf5, lmdb and tar, which are read fastest in this way, and full for the
    others.
    """
    normalize: Normalize = "none"
    """How the model normalizes pixels, which are sent as 0-255: none, unit (0-1), minus_one_one (-1 to 1), imagenet, or
    {mean: [r, g, b], std: [r, g, b]} in 0-255.
    """
    transform: Transform | None = None
    """module:function, beside this file or installed: f(image, labels, rng) -> (image, labels), called in the daemon
    for every sample, once for all its trainers. With the key images, image is a dict of all images of the sample. It
    must not raise at random: a sample for which it has raised once counts as bad from then on.
    """
    bad_samples: BadSamplesConfig = BadSamplesConfig()
    """What to do with samples that cannot be decoded."""
    pace: PaceKey = PaceConfig()
    """free, or {lockstep: 10s}: the fastest trainers wait up to that long per epoch for the others, so that each batch
    is decoded once."""
    cache: CacheConfig | None = None
    """Keeps decoded samples on disk, so that they are decoded once: {path: cache/train, max: 20GiB}."""

    @property
    def all_images(self) -> dict[str, ImageConfig]:
        """The images of each sample by name; the only one of `image` is called image."""
        return {ONLY_IMAGE: self.image} if self.images is None else self.images

    @property
    def is_random_crop(self) -> bool:
        """Whether a part of any image is drawn anew in every epoch."""
        return any(image.resize == "random_crop" for image in self.all_images.values())

    @property
    def bad_policy(self) -> BadPolicy:
        """The policy in effect: as written, else `mask` where shuffle is none, else `substitute`."""
        return self.bad_samples.policy or ("mask" if self.shuffle.kind == "none" else "substitute")

    @property
    def array_files(self) -> tuple[Path, ...]:
        """The .npy files that hold labels and weights."""
        holders: list[LabelConfig | WeightsConfig] = [*(self.labels or {}).values()]
        holders += [self.weights] if self.weights else []
        return tuple(file for each in holders if (file := parse_npy_path(each.source)))

    @property
    def listing_request(self) -> ListingRequest:
        """The samples that the stream has, in the form that dataset formats read."""
        split, labels, weights = self.split, self.labels, self.weights
        first, *others = self.all_images.values()
        # The only image of each sample may be the one that the source itself gives, and no clip of several.
        is_own = not (others or first.is_pattern or first.frames is not None) and (
            (self.images is None and first.source is None) or takes_own_picture(first, self.source)
        )
        return ListingRequest(
            self.name,
            self.source,
            None if split is None else SplitRule(split.validation, split.seed, split.by),
            None if labels is None else {name: _build_label_source(label) for name, label in labels.items()},
            None if weights is None else _build_label_source(weights),
            None if is_own else build_image_sources(self.all_images, self.source),
            # What the only array must hold; the form of files is checked by a decoder.
            None if self.source.is_encoded or others else first.array_form,
        )

    @property
    def data_paths(self) -> tuple[Path, ...]:
        """The files and folders that source, images, labels and weights name; patterns are not expanded."""
        return (*self.source.data_paths, *list_image_paths(self.all_images, self.source), *self.array_files)

    @property
    def label_files(self) -> tuple[Path, ...]:
        """The files that hold labels and weights."""
        return (*self.source.label_files, *self.array_files)

    @property
    def remainder(self) -> RemainderPolicy:
        """`drop_remainder` as a StreamSpec names it."""
        return _REMAINDERS[self.drop_remainder]

    @model_validator(mode="before")
    @classmethod
    def _add_defaults_of_source(cls, data: object) -> object:
        """Adds a split to a stream that takes a part, and shuffles in chunks what is read fastest in chunks."""
        source = data.get("source") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(source, Mapping):
            return data
        added: dict[str, object] = {}
        kind, shuffle = source.get("kind"), data.get("shuffle", {})
        settings = SOURCE_MODELS[kind].settings if isinstance(kind, str) and kind in SOURCE_MODELS else DataSource
        if source.get("part") in ("train", "validation") and data.get("split") is None and not settings.has_own_parts:
            added["split"] = {}
        is_chunked = settings.is_chunked
        if is_chunked and isinstance(shuffle, Mapping) and "kind" not in shuffle:
            added["shuffle"] = {**shuffle, "kind": "chunk"}
        return {**data, **added}

    list_rules = list_stream_rules


class Config(ConfigModel):
    """All of config.yaml. `memory` is in bytes. Paths are absolute, resolved against `base_folder`.

    `key_locations` has the line of each key, for errors that appear only when the data are read.
    """

    curve: CurveConfig | None = None
    """The keys that tcp:// endpoints need."""
    listen: ListenKey = None  # after curve: its validator reads curve, and pydantic validates in this order
    """The daemon's socket, such as ipc:///run/streamd/streamd.sock; null means the default path. With a list also
    tcp://address:port, for other hosts."""
    memory: Memory = GIB
    """Batch memory for all streams and trainers together, such as 512MiB or 2GB; at least 1MiB."""
    workers: Workers = "auto"
    """The number of decode processes; auto means one for each CPU core that the daemon may use."""
    engine: EngineKey = EngineConfig()
    """Where decoding happens: local, or {kind: ray, address: auto}."""
    expect: dict[Text, ExpectConfig] | None = None
    """The identities of streams, such as {train: {order: ..., pixels: ...}}, as `streamd check` prints them. The daemon
    refuses to serve a stream of this name with others, so that the daemons of many hosts serve the same batches. A file
    that is missing on this host, or forbidden, then stops its stream.
    """
    monitor: HostPort | None = None
    """address:port, such as 127.0.0.1:9191, of the dashboard, /metrics for Prometheus, /healthz and /readyz."""
    streams: dict[str, StreamConfig]
    """What is served: the name of each stream, and its keys under it."""

    _base: Path = PrivateAttr(default=Path())
    _places: KeyLocations = PrivateAttr(default=KeyLocations("configuration", {}, {}))

    def model_post_init(self, context: Any, /) -> None:
        """Keeps the folder and the lines of keys, which `load` passes as the context."""
        if context:
            self._base, self._places = context["base"], context["places"]

    @property
    def base_folder(self) -> Path:
        """The folder against which relative paths were resolved."""
        return self._base

    @property
    def key_locations(self) -> KeyLocations:
        """The file and line of each key."""
        return self._places

    @property
    def worker_count(self) -> int:
        """The number of decode processes; `auto` is one for each processor that this process may keep busy."""
        return count_processors() if self.workers == "auto" else self.workers

    @property
    def memory_warning(self) -> str | None:
        """A sentence on `memory`, where it is more than this machine or the cgroup of this process has."""
        has = measure_memory()
        if self.memory <= has.limit_bytes:
            return None
        return (
            f"memory: {format_bytes(self.memory)} is more than {has.source} has, {format_bytes(has.limit_bytes)}: once "
            "trainers hold so much, the kernel ends processes; set less"
        )

    def list_rules(self) -> Iterator[BrokenRule]:
        """Yields the streams of `expect` that do not exist."""
        for name in self.expect or ():
            if name not in self.streams:
                yield ("expect", name), f"there is no such stream{suggest_name(name, self.streams)}"

    @property
    def local_endpoint(self) -> str | None:
        """The endpoint for clients of this host; None for the default one."""
        return next((each for each in self.listen or () if each.startswith("ipc://")), None)

    @property
    def remote_endpoints(self) -> tuple[str, ...]:
        """The endpoints for clients on other hosts."""
        return tuple(each for each in self.listen or () if each.startswith("tcp://"))

    @field_validator("listen")
    @classmethod
    def _require_curve_for_tcp(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        open_door = next((endpoint for endpoint in value or () if endpoint.startswith("tcp://")), None)
        if open_door and info.data.get("curve", ...) is None:
            raise ValueError(
                f"{open_door} is open to the network and needs keys: run  streamd keygen keys/daemon  and write  "
                "curve: {secret: keys/daemon/daemon.key_secret, clients: keys/clients}  or use ipc:///path/to/socket"
            )
        return value


def format_json_schema() -> str:
    """Returns the JSON schema of config.yaml as a file holds it."""
    return json.dumps(build_json_schema(), indent=2) + "\n"


def build_json_schema() -> JsonSchema:
    """Returns the JSON schema of config.yaml, with its definitions in alphabetical order."""
    schema = _tidy_schema(Config.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = schema.pop("$defs")
    # A stream: no key for its name, `like`, and without it a source and a size for files.
    stream = definitions["StreamConfig"]
    properties = {key: value for key, value in stream["properties"].items() if key != "name"}
    like = {"type": "string", "description": "A stream whose keys are copied, except for those given here."}
    files = {
        "properties": {"source": {"properties": {"kind": {"enum": sorted(ENCODED_KINDS)}}}},
        "required": ["source"],
    }
    sized = {
        "anyOf": [{"properties": {"image": {"required": ["size"]}}, "required": ["image"]}, {"required": ["images"]}]
    }
    named = {"properties": {"source": {"required": ["image"]}}}
    table = {"properties": {"source": {"properties": {"kind": {"const": "table"}}}}, "not": {"required": ["images"]}}
    one = {
        "properties": {"source": {"properties": {"kind": {"enum": ["hdf5", "lmdb"]}}}},
        "not": {"required": ["images"]},
    }
    array = {"properties": {"source": {"required": ["images"]}}}
    definitions["StreamConfig"] = {
        **stream,
        "properties": {"like": like, **properties},
        "required": [],
        "if": {"required": ["like"]},
        "else": {
            "required": ["source"],
            "if": files,
            "then": sized,
            "allOf": [{"if": table, "then": named}, {"if": one, "then": array}],
        },
    }
    schema["properties"]["streams"] |= {"minProperties": 1, "propertyNames": {"pattern": _NAME_PATTERN}}
    for name, definition in definitions.items():
        if not name.endswith("Source"):
            del definition["description"]  # it describes our classes; every key has a description of its own
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "streamd: config.yaml",
        **schema,
        "description": "What streamd serves. Relative paths are relative to this file.",
        "definitions": definitions,
    }


def _tidy_schema(schema: Any) -> Any:
    """Returns the schema without noise, and with each `$ref` that has siblings wrapped in `allOf`.

    Draft 7 ignores the siblings of a `$ref`. Defaults that are null or mappings are left out, since they tell the
    author of a file nothing.
    """
    if isinstance(schema, list):
        return [_tidy_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _tidy_schema(value)
        for key, value in schema.items()
        if not (key in _DROPPED_KEYS and isinstance(value, str | dict))
    }
    if kept.get("default", ...) is None or isinstance(kept.get("default"), dict):
        del kept["default"]
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].split())
    if "prefixItems" in kept:
        kept["items"] = kept.pop("prefixItems")[0]  # of a pair, whose two items are alike; draft 7 knows no prefix
    if "$ref" in kept and len(kept) > 1:
        return {"allOf": [{"$ref": kept.pop("$ref")}], **kept}
    return kept
