"""What is written or said in which version, and what becomes of another one."""

from __future__ import annotations

from dataclasses import fields

from operations_table import table

from streamd.core.sampler import ORDER_VERSION
from streamd.core.token import Token
from streamd.dataset import cache
from streamd.dataset.manifest import manifest
from streamd.frameworks import checkpoint
from streamd.ipc import messages


def version_table() -> str:
    read = " and ".join(map(str, manifest.READABLE_VERSIONS))
    rows = [
        (
            "the wire, between daemon and trainers",
            str(messages.VERSION),
            (
                "not compatible: both sides report it, and trainers end with an error; they can resume once both sides "
                "have the same version"
            ),
        ),
        (
            "the plan: the order of an epoch",
            str(ORDER_VERSION),
            "the order changes: trainers that were reading end with StreamChangedError, and tokens are refused",
        ),
        (
            "pixels, which follow from the decoders and the transform",
            "no number",
            "tokens are accepted; the receipt of that epoch says `changed`; a `cache` starts a new file",
        ),
        (
            "lists of samples, `….manifest`",
            str(manifest.VERSION),
            f"{read} are read; another is refused by name: remove it, and the samples are listed again",
        ),
        ("verdicts, `….bad.jsonl`", "no number", "lines that cannot be read are refused by file and line"),
        (
            "caches, `….cache`",
            f"{cache._VERSION}; {cache._VERSION_WITH_BOXES} with boxes or points",
            "the stream works without the cache, and logs this: remove the file",
        ),
        ("tokens", str(_field(Token, "version")), "refused: use the version of streamd that saved it, or start over"),
        (
            "checkpoints of ResumeCallback",
            str(checkpoint._VERSION),
            "refused: continue with the version of streamd that saved it",
        ),
    ]
    return table(("what", "version", "another one"), rows)


def _field(kind: type, name: str) -> object:
    """The default of a dataclass's field."""
    return next(each.default for each in fields(kind) if each.name == name)
