"""Trains as a program does that is killed ten times, and writes what its end and that of an unkilled one are, as JSON.

    PYTHONPATH=tests python tests/support/killed_training.py DIRECTORY

Each process is a fork of this one, made before TensorFlow has begun anything: to import it takes longer than all that a
process does here.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from streamd.frameworks import checkpoint
from streamd.frameworks.keras import load_keras
from support.resumed_training import train, values

EVERY: Final = 2

# What is called, and how often it is done before that kills: after each line the step that the next process begins
# after. Of an epoch's 13 steps the last is saved after its validation; a save syncs four times, the last when it is
# renamed; Keras begins one step more than the rest of an epoch has.
KILLS: Final = (
    ("on_train_batch_begin", 3),  # 2: one step was finished since
    ("on_train_batch_end", 3),  # 4: at the end of step 6, before it was saved
    ("fsync", 5),  # 6: 8 was being written
    ("fsync", 2),  # 6: 8 was written, and not yet there
    ("fsync", 3),  # 8: just there
    ("on_train_batch_begin", 5),  # 12: as the next epoch begins, after a validation
    ("on_test_batch_end", 1),  # 12: in the validation
    ("on_epoch_end", 0),  # 12: after it
    ("on_train_batch_begin", 7),  # 18, in the second epoch
    ("on_train_batch_begin", 11),  # 28, in the last epoch
)


def killer(calls: int) -> Callable[..., None]:
    """kill -9 of this process after so many calls."""
    left = iter(range(calls))

    def count(*_: Any, **__: Any) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def others() -> list[Any]:
    """Callbacks with a state of their own; by its rate, a schedule that multiplies shows an epoch that begins twice."""
    callbacks = load_keras().callbacks
    return [
        callbacks.LearningRateScheduler(lambda _, rate: rate * 0.9),
        callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0),
    ]


def fix() -> None:
    """What equal bits need on a CPU, beside the seed. JAX needs nothing."""
    backend = load_keras().backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf  # noqa: PLC0415 - it may not be there, as the backend is another

        tf.config.threading.set_intra_op_parallelism_threads(2)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        tf.config.experimental.enable_op_determinism()
    elif backend == "torch":
        import torch  # noqa: PLC0415 - as above

        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(mode=True)


def run(directory: Path | None, end: Path, moment: str = "", calls: int = 0) -> None:
    """One process: trains to the end, and tells of it, or is killed."""
    fix()
    callbacks = others()
    if moment == "fsync":
        sync, count = os.fsync, killer(calls)
        checkpoint.os.fsync = lambda descriptor: (count(), sync(descriptor))[1]  # type: ignore[attr-defined]  # a spy
    elif moment:
        callbacks.append(load_keras().callbacks.LambdaCallback(**{moment: killer(calls)}))
    model, history, stream = train(directory, *callbacks, every=EVERY, whole=True, validated=True)
    digest = hashlib.sha256(b"".join(each.tobytes() for each in values(model))).hexdigest()
    end.write_text(json.dumps({"digest": digest, "history": history, "taken": len(stream.taken)}))


def forked(*arguments: Any) -> int:
    """What `run` ended with: 0, or the signal's number below it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            run(*arguments)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    place = Path(sys.argv[1])
    unkilled, killed, states = place / "unkilled.json", place / "killed.json", place / "states"
    load_keras()
    statuses = [forked(None, unkilled)]
    statuses += [forked(states, killed, *kill) for kill in KILLS]
    statuses += [forked(states, killed)]
    ends = [json.loads(path.read_bytes()) for path in (unkilled, killed)]
    sys.stdout.write(json.dumps({"statuses": statuses, "ends": ends}))


if __name__ == "__main__":
    main()
