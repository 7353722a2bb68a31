"""Corrections for common mistakes: words of other tools, keys in the wrong place, examples of the right form. Pure.

A hint is the end of a message, from its semicolon on, or empty.
"""

from __future__ import annotations

from typing import Final

from streamd.config.units import format_yaml_value
from streamd.errors import suggest_name

# Examples for keys that need a mapping.
KEY_EXAMPLES: Final[dict[str | int, str]] = {
    "streams": "streams: {train: {source: {kind: folder, path: data/train}, image: {size: [128, 128]}}}",
    "source": "source: {kind: folder, path: data/train}",
    "where": "where: {split: train}",
    "split": "split: {validation: 0.2}",
    "labels": "labels: {label: category}",
    "image": "image: {size: [128, 128]}",
    "shuffle": "{kind: full, seed: 0}",
    "bad_samples": "bad_samples: {policy: mask, max_fraction: 0.01}",
    "cache": "cache: {path: cache/train, max: 20GiB}",
    "curve": "curve: {secret: keys/daemon.secret, clients: keys/clients}",
    "engine": "{kind: ray, address: auto}",
}

# Keys whose mapping may be written as one word.
SHORT_FORMS: Final[dict[str | int, list[str]]] = {"shuffle": ["full", "none", "chunk"], "engine": ["local", "ray"]}

MISSING_KEY_HINTS: Final[dict[str | int, str]] = {
    "streams": f"add at least one: {KEY_EXAMPLES['streams']}",
    "source": f"say where the samples are, such as {KEY_EXAMPLES['source']}",
    "path": "say where the data is, relative to the file",
    "image": "give the column that holds the file names",
    "images": "give the array that holds the images",
    "type": "use category, int, float, string, tags, boxes or points",
    "mean": "mean and std come together, one number per channel, from 0 to 255",
    "std": "mean and std come together, one number per channel, from 0 to 255",
    "secret": "give the path of the daemon's secret key file",
    "clients": "give the path of the folder of the clients' public keys",
}

# The commonest keys of other tools, or of another place, and what replaces them here.
FOREIGN_KEYS: Final = {
    "augmentation": "each trainer augments in its own model",
    "channels": "mode sets it: RGB has 3, L has 1",
    "epochs": "set it in the trainer: streamd-train --epochs N, or subscribe(epochs=N)",
    "image_size": "write image: {size: [height, width]}",
    "num_workers": "write workers, at the top level",
    "port": "the daemon's address is listen, at the top level",
    "prefetch": "set it in the trainer: subscribe(prefetch=N)",
    "rank": "set it in the trainer: subscribe(rank=R, world=W)",
    "target_size": "write image: {size: [height, width]}",
    "validation_split": "write split: {validation: 0.2}, and part: train or part: validation under source",
}

# Keys of the configuration's whole language that this version does not serve, and what to do until it does.
UNSERVED_KEYS: Final = {
    "draw": "each sample comes once per epoch; weights: COLUMN weighs samples in the loss",
    "fetch": "copy the files to a disk of this host",
    "fold": "write the folds into a column of a table, and select with where: {COLUMN: 1}",
    "folds": "write the folds into a column of a table, and select with where: {COLUMN: 1}",
    "mix": "list the samples of both streams in one table",
    "stratify": "split by a column of a table, or leave it out",
    "take": "list the samples that you want in a table or a file list",
}

_FOREIGN_WORDS: Final = {  # the commonest, and what YAML reads as no text
    "classification": "category",
    "csv": "table",
    "parquet": "table",
    "webdataset": "tar",
    "double": "float",
    "float32": "float",
    "regression": "float",
    "gray": "L",
    "grey": "L",
    "random": "full",
    "false": "none",
    "null": "none",
    "true": "full",
    "val": "validation",
    "semicolon": ";",
}
_BOOLEAN_WORDS: Final = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}


def suggest_choice(value: object, choices: list[str]) -> str:
    """Suggests `; did you mean 'full'?` for a word that means one of `choices`, or nearly is one."""
    # YAML reads some of these words, such as true or null, as values other than text.
    if value is not None and not isinstance(value, bool | str):
        return ""
    text = format_yaml_value(value) if isinstance(value, bool) else value or "null"
    word = _FOREIGN_WORDS.get(text.casefold())
    return f"; did you mean {word!r}?" if word in choices else suggest_name(text, choices)


def suggest_boolean(value: object) -> str:
    """Suggests `; did you mean true?` for the other booleans of YAML 1.1, and for quoted ones."""
    word = _BOOLEAN_WORDS.get(str(value).casefold()) if isinstance(value, str) else None
    return f"; did you mean {word}?" if word else ""


def suggest_whole_number(value: object) -> str:
    """Suggests `; did you mean 1000?` for 1e3, 1000.0 and '1000', which are no whole numbers in YAML."""
    if isinstance(value, float) and value.is_integer():
        return f"; did you mean {int(value)}?"
    if isinstance(value, str) and value.strip().isdecimal():
        return f"; did you mean {int(value)}, without quotes?"
    return ""


def suggest_fraction(value: object) -> str:
    """Suggests `; did you mean 0.2?` for 20, 20% and '0.2'."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        return ""
    number = number / 100 if text.endswith("%") or (number > 1 and number.is_integer()) else number
    return f"; did you mean {number:g}?" if 0 < number <= 1 else ""
