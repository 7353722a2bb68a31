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

# key: when to change it, how it takes effect
ADVICE: Final[dict[str, tuple[str, str]]] = {
    "curve.secret": ("there is no TCP yet", NONE),
    "curve.clients": ("there is no TCP yet", NONE),
    "listen": ("several daemons on one host; under systemd leave it out, streamd.socket decides", RESTART),
    "memory": (
        "see Sizing; nobody but you holds it against the RAM that there is",
        RESTART,
    ),
    "workers": (
        "fewer, where trainers need the cores; under a quota, which `auto` does not see",
        RESTART,
    ),
    "engine.kind": ("there is no other yet", NONE),
    "engine.address": ("there is no cluster yet", NONE),
    "monitor": ("as soon as somebody else relies on the daemon", RESTART),
    "like": ("a validation stream beside its training stream", "as the keys that it copies"),
    "split.validation": ("another share; train and validation must say the same", ANEW),
    "split.seed": ("another draw of what is held back", ANEW),
    "split.by": ("where images of one subject must not be on both sides", ANEW),
    "labels": ("another task on the same images", ANEW),
    "labels.NAME.type": ("where the data's own type is not meant", ANEW),
    "labels.NAME.from": ("where the column has another name than the label", ANEW),
    "labels.NAME.classes": ("so that new data cannot renumber the classes", ANEW),
    "weights.from": ("where samples are not worth the same", ANEW),
    "image.size": ("what the network takes; memory and decoding grow with it", AGAIN),
    "image.mode": ("L for a network with one channel: a third of the memory", AGAIN),
    "image.resize": ("crop or pad where shapes must not be distorted; random_crop to augment", AGAIN),
    "image.exact": ("where the last bit of sharpness is worth a third of the rate", AGAIN),
    "image.scale": ("with random_crop, for milder crops", AGAIN),
    "image.ratio": ("with random_crop, for milder crops", AGAIN),
    "batch_size": ("what the network is trained with; a trainer may take parts or several by itself", ANEW),
    "drop_remainder": ("true or pad where every batch must have the same shape", ANEW),
    "shuffle.kind": ("none for evaluation; chunk where single reads are dear", ANEW),
    "shuffle.seed": ("for another run of the same experiment", ANEW),
    "shuffle.chunk": ("larger for slow disks, smaller for better mixing", ANEW),
    "shuffle.buffer": ("larger, when `streamd check` says that batches mix poorly", ANEW),
    "normalize": ("what the network was trained with; the model does it, not the daemon", AGAIN),
    "normalize.mean": ("for channels in another range than ImageNet's", AGAIN),
    "normalize.std": ("for channels in another range than ImageNet's", AGAIN),
    "transform": ("what every trainer would otherwise do for itself on its own cores", AGAIN),
    "bad_samples.policy": ("fail where no sample may be missing; mask where rows must stay where they are", AGAIN),
    "bad_samples.max_fraction": ("larger, once you know the damage and live with it", UNNOTICED),
    "pace.lockstep": ("trainers draw level by themselves", NONE),
    "cache.path": ("where decoding is the limit and the disk has room: see Sizing", UNNOTICED),
    "cache.max": ("larger at any time; a smaller one leaves the file as it is", UNNOTICED),
}

# key of a source: when to change it
OF_SOURCES: Final[dict[str, str]] = {
    "path": "data that moved and are the same otherwise keep order and tokens",
    "part": "one stream for each side",
    "image": "the table's own name for it",
    "root": "names that are not relative to the table's or list's folder",
    "where": "one table for several streams",
    "images": "what is in the file",
    "range": "what is black and what is white in numbers that are no pixels",
    "table": "labels of arrays",
    "names": "what `client.names` and reports call samples; no order or token depends on it",
    "separator": "where check or serve says that the table does not show it",
    "encoding": "text of older programs, such as cp1252 of Windows; check says what it looks like",
    "decimal": "fractions written with a comma where commas separate cells, too",
}

# variable: what it says, to whom, and when it is set
ENVIRONMENT: Final[dict[str, tuple[str, str]]] = {
    "STREAMD_ENDPOINT": ("trainers, commands", "where the daemon is, when it is not at this host's default places"),
    "RUNTIME_DIRECTORY": ("daemon", "the folder of the default endpoint; systemd sets it"),
    "XDG_RUNTIME_DIR": ("daemon, trainers", "the same for a daemon that a user starts"),
    "STATE_DIRECTORY": ("daemon", "the folder of lists and verdicts; systemd sets it"),
    "XDG_STATE_HOME": ("daemon", "the same for a daemon that a user starts; ~/.local/state if not set"),
    "JOURNAL_STREAM": ("daemon", "systemd sets it: events then go to the journal with their fields"),
    "OPENBLAS_NUM_THREADS": ("daemon", "1, unless set: products of matrices are made by nobody here"),
    "NOTIFY_SOCKET": ("daemon", "systemd sets it, and hears there of ready, reloading, stopping and status"),
    "WATCHDOG_USEC": ("daemon", "systemd sets it, from WatchdogSec="),
    "WATCHDOG_PID": ("daemon", "systemd sets it"),
    "LISTEN_PID": ("daemon", "systemd sets it, with the sockets of streamd.socket"),
    "LISTEN_FDS": ("daemon", "as above"),
    "LISTEN_FDNAMES": ("daemon", "as above"),
    "KERAS_BACKEND": ("trainers", "tensorflow, unless set"),
    "TF_CPP_MIN_LOG_LEVEL": ("streamd-train", "2, unless set: TensorFlow's notes bury the progress bar"),
    "TF_FORCE_GPU_ALLOW_GROWTH": ("streamd-train", "true, unless set: else the first trainer takes all of a GPU"),
}

# a key of systemd/streamd.service: when to change it, by `systemctl edit streamd`
UNIT_ADVICE: Final[dict[str, str]] = {
    "User": "it must be able to read the data: an ACL (`setfacl -R -m u:streamd:rX /data`), or `SupplementaryGroups=`",
    "MemoryMax": "above `memory` and what the workers have; the page cache of the data counts, and gives way first",
    "MemorySwapMax": "batches that are swapped out are slower than decoding them again",
    "TasksMax": "processes and threads, up to a dozen for each worker: raise it above 80 workers",
    "LimitNOFILE": "far above what Sizing comes to; the daemon takes all that it is allowed",
    "TimeoutStopSec": "above the drain's bound; what is left then is killed",
    "TimeoutStartSec": "the first start lists the samples, however long that takes",
    "WatchdogSec": "longer on a host that is stopped or swapped out for long",
    "Restart": "a daemon that fails is started anew",
    "RestartSec": "trainers wait so long beside its start",
    "StartLimitBurst": "after so many tries in a minute it is given up: `systemctl reset-failed streamd`",
    "RestartPreventExitStatus": "a mistake in the configuration waits for you",
    "OOMPolicy": "a worker that runs out of memory is replaced; the service goes on",
    "ProtectHome": "data in a home: `BindReadOnlyPaths=/home/NAME/data`",
    "ProtectSystem": "a cache outside /var/cache: `ReadWritePaths=/srv/cache`",
    "MemoryDenyWriteExecute": "no, for transforms that compile at run time (numba)",
    "IPAddressAllow": "the Prometheus or browser that asks from another host: add its address",
    "UMask": "lists, verdicts and caches are the daemon's alone",
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
        parts = [schema["definitions"][part] for part in _parts(each)]
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
