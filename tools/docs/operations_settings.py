"""Every setting: what the configuration's models say of it, and when to change it; the environment, and the unit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from operations_table import ROOT, code, table

from streamd.config.schema import JsonSchema, build_json_schema
from streamd.config.units import format_bytes

UNIT: Final = ROOT / "systemd" / "streamd.service"

# What becomes of a changed setting, and of the trainers of its stream.
RESTART: Final = "restart"
UNNOTICED: Final = "reload: unnoticed"
AGAIN: Final = "reload: subscribe again"
ANEW: Final = "reload: begin anew"
NONE: Final = "not served yet"
IMAGES: Final = "a key of `images`"

# key: when to change it, how it takes effect
ADVICE: Final[dict[str, tuple[str, str]]] = {
    "curve.secret": ("if trainers are on other hosts; under systemd, leave it out and give a credential", RESTART),
    "curve.clients": (
        "if trainers are on other hosts; the keys in the folder may change at any time, see docs/remote.md",
        RESTART,
    ),
    "listen": (
        "if several daemons run on one host; under systemd, leave it out: streamd.socket sets the path",
        RESTART,
    ),
    "memory": (
        "see Sizing; the start and `streamd check` warn if it is more than the host or a cgroup has",
        RESTART,
    ),
    "workers": (
        "fewer, if trainers need the cores; `auto` takes those of the affinity, or of a cgroup's quota, rounded down",
        RESTART,
    ),
    "expect.order": ("on each of many hosts, so that they serve the same batches", "reload: applies to all streams"),
    "expect.pixels": ("as above; after an update of streamd, check it again", "reload: applies to all streams"),
    "engine.kind": ("if the cores of this host do not suffice; see cluster.md", RESTART),
    "engine.address": ("if the daemon runs on no node of the cluster, or shall start one: local", RESTART),
    "engine.nodes": ("if other work needs the rest of the cluster", RESTART),
    "engine.num_cpus": ("the processors of a node that may decode", RESTART),
    "engine.resources": ("if only some nodes have the data: a resource that those offer", RESTART),
    "engine.placement": ("PACK leaves idle nodes to others, or lets a cluster shrink", RESTART),
    "engine.runtime_env": ("if nodes need variables or packages that their image lacks", RESTART),
    "monitor": ("as soon as other people rely on the daemon", RESTART),
    "like": ("for a validation stream next to a training stream", "as the keys that it copies"),
    "split.validation": (
        "to hold back another fraction; the train and validation streams must have the same value",
        ANEW,
    ),
    "split.seed": ("to hold back other samples", ANEW),
    "split.by": ("if images of one subject must not be in both parts", ANEW),
    "labels": ("another task on the same images", ANEW),
    "labels.NAME.type": ("if the type found in the data is not the one you want", ANEW),
    "labels.NAME.from": ("if the column's name differs from the label's", ANEW),
    "labels.NAME.classes": ("so that new data cannot renumber the classes", ANEW),
    "labels.NAME.max": (
        "to the largest number of boxes or points that a sample has; each row has room for so many",
        AGAIN,
    ),
    "labels.NAME.of": ("if boxes belong to another image than the first one", AGAIN),
    "labels.NAME.format": ("if boxes are not left, top, right, bottom", ANEW),
    "labels.NAME.unit": ("if boxes are fractions of the picture's width and height", ANEW),
    "labels.NAME.min_visible": ("larger, if crops leave slivers of objects that nobody could recognize", AGAIN),
    "weights.from": ("if some samples should count more than others", ANEW),
    "image.size": ("the input size of the network; a larger size needs more memory and decoding time", AGAIN),
    "image.mode": ("L for a network with one channel: a third of the memory; raw for 16 bits and many channels", AGAIN),
    "image.resize": ("crop or pad where shapes must not be distorted; random_crop to augment", AGAIN),
    "image.exact": ("if the little extra sharpness is worth a third of the decoding rate", AGAIN),
    "image.scale": ("with random_crop, for milder crops", AGAIN),
    "image.ratio": ("with random_crop, for milder crops", AGAIN),
    "image.views": ("for contrastive learning: so many random crops of each picture, from one decode", AGAIN),
    "image.frames.by": ("for clips: the column that is equal within a drive or a video", ANEW),
    "image.frames.order": ("for clips: the column that sorts each sequence; numbers are safest", ANEW),
    "image.frames.offsets": ("for clips: which frames, as positions from the sample's own row", ANEW),
    "image.frames.edge": ("drop, if a clip that repeats a picture would mislead the model", ANEW),
    "image.from": ("not here", IMAGES),
    "image.root": ("not here", IMAGES),
    "image.like": ("not here", IMAGES),
    "image.channels": ("with mode raw, as many as the files have", AGAIN),
    "image.dtype": ("uint16 for masks with more than 256 classes, and as the files have it in mode raw", AGAIN),
    "image.range": ("with mode raw, if the sensor does not fill its type: [0, 4095] for 12 bits", AGAIN),
    "image.fill": ("if a class of yours has the number 255, which pads masks", AGAIN),
    "image.normalize": ("if this image needs another one than the stream's others", AGAIN),
    "image.normalize.mean": ("for channels in another range than ImageNet's", AGAIN),
    "image.normalize.std": ("for channels in another range than ImageNet's", AGAIN),
    "images": (
        "for masks and several cameras: each takes the keys of image, under a name of its own",
        "as the keys of image; another `from` or `root`: begin anew",
    ),
    "batch_size": ("the batch size of the training; a single trainer can also ask for smaller or larger batches", ANEW),
    "drop_remainder": ("true or pad where every batch must have the same shape", ANEW),
    "shuffle.kind": ("none for evaluation; chunk if single reads are expensive", ANEW),
    "shuffle.seed": ("for another run of the same experiment", ANEW),
    "shuffle.chunk": ("larger for slow disks, smaller for better mixing", ANEW),
    "shuffle.buffer": ("larger, if `streamd check` says that the labels are poorly mixed within batches", ANEW),
    "normalize": ("the normalization that the network was trained with; the model applies it, not the daemon", AGAIN),
    "normalize.mean": ("for channels in another range than ImageNet's", AGAIN),
    "normalize.std": ("for channels in another range than ImageNet's", AGAIN),
    "transform": ("for preprocessing that every trainer would otherwise do on its own cores", AGAIN),
    "bad_samples.policy": ("fail if no sample may be missing; mask if rows must keep their places", AGAIN),
    "bad_samples.max_fraction": ("larger, if you know which samples are bad and accept that", UNNOTICED),
    "pace.lockstep": ("not needed: trainers that are behind catch up by themselves", NONE),
    "cache.path": ("if decoding is the bottleneck and the disk has room: see Sizing", UNNOTICED),
    "cache.max": ("can be raised at any time; a lower value does not shrink the file", UNNOTICED),
}

# key of a source: when to change it
OF_SOURCES: Final[dict[str, str]] = {
    "path": "when the data have moved; if they are otherwise the same, the order and the tokens stay valid",
    "part": "one stream for each part",
    "image": "the table's own name for it",
    "root": "if names are not relative to the folder of the table or list",
    "crowd": "keep, if boxes around crowds are to be learnt like others",
    "where": "one table for several streams",
    "images": "what is in the file",
    "range": "if values are not uint8: which value is black and which is white",
    "table": "to give the arrays labels",
    "names": (
        "to set the names that `client.names` and reports use for samples; neither the order nor tokens depend on them"
    ),
    "separator": "if check or serve says that it cannot detect the separator",
    "encoding": (
        "for text from older programs, such as cp1252 from Windows; `streamd check` says which encoding it looks like"
    ),
    "decimal": "if fractions have a decimal comma and commas also separate cells, or could separate numbers of a list",
}

# variable: what it says, to whom, and when it is set
ENVIRONMENT: Final[dict[str, tuple[str, str]]] = {
    "STREAMD_ENDPOINT": (
        "trainers, commands",
        "the daemon's endpoint, if it is not one of the default endpoints of this host",
    ),
    "RUNTIME_DIRECTORY": ("daemon", "the folder of the default endpoint; systemd sets it"),
    "XDG_RUNTIME_DIR": ("daemon, trainers", "the same for a daemon that a user starts"),
    "CREDENTIALS_DIRECTORY": ("daemon", "the folder of streamd.key_secret without `curve.secret`; systemd sets it"),
    "STREAMD_CURVE_SECRET": ("trainers, commands", "the client's secret key file, for tcp:// endpoints"),
    "STREAMD_CURVE_SERVER": ("trainers, commands", "the daemon's public key file, for tcp:// endpoints"),
    "STATE_DIRECTORY": ("daemon", "the folder of lists and verdicts; systemd sets it"),
    "XDG_STATE_HOME": ("daemon", "the same for a daemon that a user starts; ~/.local/state if not set"),
    "JOURNAL_STREAM": ("daemon", "systemd sets it: events then go to the journal with their fields"),
    "OPENBLAS_NUM_THREADS": ("daemon", "1, unless set: streamd computes no matrix products"),
    "NOTIFY_SOCKET": ("daemon", "systemd sets it; the daemon reports ready, reloading, stopping and its status there"),
    "WATCHDOG_USEC": ("daemon", "systemd sets it, from WatchdogSec="),
    "WATCHDOG_PID": ("daemon", "systemd sets it"),
    "LISTEN_PID": ("daemon", "systemd sets it, with the sockets of streamd.socket"),
    "LISTEN_FDS": ("daemon", "as above"),
    "LISTEN_FDNAMES": ("daemon", "as above"),
    "KERAS_BACKEND": ("trainers", "tensorflow, unless set"),
    "TF_CPP_MIN_LOG_LEVEL": ("streamd-train", "2, unless set: TensorFlow's log messages would bury the progress bar"),
    "TF_FORCE_GPU_ALLOW_GROWTH": (
        "streamd-train",
        "true, unless set: otherwise the first trainer takes all the memory of a GPU",
    ),
}

# a key of systemd/streamd.service: when to change it, by `systemctl edit streamd`
UNIT_ADVICE: Final[dict[str, str]] = {
    "User": "it must be able to read the data: an ACL (`setfacl -R -m u:streamd:rX /data`), or `SupplementaryGroups=`",
    "MemoryMax": (
        "more than `memory` plus the memory of the workers; the page cache of the data counts too, but is freed first"
    ),
    "MemorySwapMax": "batches that are swapped out are slower than decoding them again",
    "TasksMax": "processes and threads, up to a dozen for each worker: raise it above 80 workers",
    "LimitNOFILE": "far above the number under Sizing; the daemon uses the hard limit",
    "TimeoutStopSec": "longer than the daemon needs to drain (5 s); systemd kills what is left after it",
    "TimeoutStartSec": "the first start lists the samples, however long that takes",
    "WatchdogSec": "raise it on a host that is suspended or swaps for a long time",
    "Restart": "a daemon that fails is started again",
    "RestartSec": "after a failure, trainers wait for this time and for the daemon's start",
    "StartLimitBurst": "after this many starts in a minute, systemd gives up: run `systemctl reset-failed streamd`",
    "RestartPreventExitStatus": (
        "after a mistake in the configuration, systemd does not restart the daemon: fix the mistake first"
    ),
    "OOMPolicy": "a worker that runs out of memory is replaced; the service goes on",
    "ProtectHome": "for data in a home directory: `BindReadOnlyPaths=/home/NAME/data`",
    "ProtectSystem": "for a cache outside /var/cache: `ReadWritePaths=/srv/cache`",
    "MemoryDenyWriteExecute": "set it to `no` for transforms that compile at run time (numba)",
    "IPAddressAllow": "if Prometheus or a browser connects from another host, add its address",
    "UMask": "only the daemon's user can read lists, verdicts and caches",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of config.yaml, with its whole path below a stream, as its model explains it."""

    key: str
    default: str
    text: str


def of_daemon() -> Iterator[Setting]:
    """The keys beside `streams`."""
    schema = build_json_schema()
    yield from _keys({name: each for name, each in schema["properties"].items() if name != "streams"}, schema, "")


def of_streams() -> Iterator[Setting]:
    """The keys of a stream, but for those of its source."""
    schema = build_json_schema()
    properties = schema["definitions"]["StreamConfig"]["properties"]
    yield from _keys({name: each for name, each in properties.items() if name != "source"}, schema, "")


def of_sources() -> dict[tuple[str, str], list[str]]:
    """Keys and texts of sources, and the kinds that have each."""
    definitions = build_json_schema()["definitions"]
    found: dict[tuple[str, str], list[str]] = {}
    for name, definition in sorted(definitions.items()):
        if name.endswith("Source"):
            kind = name.removesuffix("Source").lower()
            for key, each in definition["properties"].items():
                if key != "kind":
                    found.setdefault((key, each["description"]), []).append(kind)
    return found


def _keys(properties: JsonSchema, schema: JsonSchema, above: str) -> Iterator[Setting]:
    for name, each in properties.items():
        # `images` has the keys of `image` again.
        parts = [] if name == "images" else [schema["definitions"][part] for part in _parts(each)]
        if not parts or name in {"labels", "normalize"}:
            yield Setting(f"{above}{name}", _default(each), each["description"])
        for part in parts:
            yield from _keys(part["properties"], schema, f"{above}{name}.{'NAME.' if name == 'labels' else ''}")


def _parts(schema: Any) -> list[str]:
    """The definitions that a property may be."""
    if isinstance(schema, dict):
        own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        return own + [part for each in schema.values() for part in _parts(each)]
    return [part for each in schema for part in _parts(each)] if isinstance(schema, list) else []


def _default(schema: JsonSchema) -> str:
    default = schema.get("default")
    if default is None:
        return ""
    if "GiB" in str(schema.get("examples")) and isinstance(default, int):
        return code(format_bytes(default).replace(" ", ""))
    if isinstance(default, list):
        return code(f"[{', '.join(f'{each:.4g}' for each in default)}]")
    return code(json.dumps(default).strip('"'))


def daemon_table() -> str:
    return _table(of_daemon())


def stream_table() -> str:
    return _table(of_streams())


def _table(settings: Iterator[Setting]) -> str:
    rows = [(code(each.key), each.default, each.text, *ADVICE[each.key]) for each in settings]
    return table(("key", "default", "what it is", "when to change it", "takes effect"), rows)


def source_table() -> str:
    rows = [
        (code(f"source.{key}"), ", ".join(kinds), text, advice)
        for key, advice in OF_SOURCES.items()
        for (name, text), kinds in of_sources().items()
        if name == key
    ]
    return table(("key", "kinds", "what it is", "when to change it"), rows)


def environment_table() -> str:
    return table(("variable", "for", "what it says"), [(code(name), *told) for name, told in ENVIRONMENT.items()])


def unit_settings() -> dict[str, str]:
    """The keys of the service's unit."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def unit_table() -> str:
    settings = unit_settings()
    rows = [(code(f"{key}={settings[key]}"), advice) for key, advice in UNIT_ADVICE.items()]
    return table(("unit", "why, and when to change it"), rows)
