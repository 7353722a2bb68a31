"""What is written or said in which version, and what becomes of another one."""

from __future__ import annotations

from dataclasses import fields

from operations_table import table

from streamd.core.sampler import ORDER_VERSION
from streamd.core.token import Token
from streamd.dataset.cache import file
from streamd.dataset.manifest import manifest
from streamd.frameworks import checkpoint
from streamd.ipc import frames


def version_table() -> str:
    read = " and ".join(map(str, manifest._READABLE_VERSIONS))
    rows = [
        (
            "the wire, between daemon and trainers",
            str(frames.VERSION),
            "none: both say so, and trainers end with an error; they resume once both are of one version",
        ),
        (
            "the plan: the order of an epoch",
            str(ORDER_VERSION),
            "another order: trainers that were reading end with StreamChangedError, tokens are refused",
        ),
        (
            "pixels, which follow from the decoders and the transform",
            "no number",
            "tokens are taken; the receipt of that epoch says `changed`; a `cache` begins a new file",
        ),
        (
            "lists of samples, `….manifest`",
            str(manifest._VERSION),
            f"{read} are read; another is refused by name: remove it, and the samples are listed anew",
        ),
        ("verdicts, `….bad.jsonl`", "no number", "lines that cannot be read are refused by file and line"),
        ("caches, `….cache`", str(file._VERSION), "the stream does without, and says so: remove it"),
        ("tokens", str(_field(Token, "version")), "refused: use the streamd that saved it, or begin anew"),
        (
            "checkpoints of ResumeCallback",
            str(checkpoint._VERSION),
            "refused: go on with the streamd that saved it",
        ),
    ]
    return table(("what", "version", "another one"), rows)


def _field(kind: type, name: str) -> object:
    """The default of a dataclass's field."""
    return next(each.default for each in fields(kind) if each.name == name)
