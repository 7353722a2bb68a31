"""What the soak does to a daemon, its workers and its trainers. Each fault says what it did; `FAULTS` is the deck."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import killers
from soak_stage import Stage, Watched, wake
from support.daemon_process import LIMIT_S, wait_until

GUEST_EPOCHS: Final = 4
SLOW_RATE: Final = 2.0  # batches a second


@dataclass(frozen=True, slots=True)
class Fault:
    """`ends_daemon` ones are left out while a daemon shall live long."""

    name: str
    do: Callable[[Stage], None]
    ends_daemon: bool = False


# --- the daemon


def _next_daemon(stage: Stage, workers: list[int]) -> None:
    """What the dead one left must go by itself; a stopped worker needs to wake up first."""
    wake(workers)
    killers.wait_gone(workers)
    time.sleep(stage.chance.uniform(0, 2))
    stage.begin_again()


def kill_daemon(stage: Stage) -> None:
    workers = stage.daemon.workers()
    stage.count_outstanding()
    stage.daemon.process.kill()
    stage.daemon.process.wait(LIMIT_S)
    _next_daemon(stage, workers)


def kill_daemon_and_workers(stage: Stage) -> None:
    workers = stage.daemon.workers()
    stage.count_outstanding()
    killers.kill_together([stage.daemon.pid, *workers])
    stage.daemon.process.wait(LIMIT_S)
    _next_daemon(stage, workers)


def terminate_daemon(stage: Stage) -> None:
    workers = stage.daemon.workers()
    wake(workers)
    if (status := stage.daemon.terminate()) != 0:
        stage.complain(f"SIGTERM ended the daemon with status {status}")
    _next_daemon(stage, workers)


def stop_daemon(stage: Stage) -> None:
    killers.stop(stage.daemon.pid)
    time.sleep(stage.chance.uniform(0.5, 8))
    killers.go_on(stage.daemon.pid)


def reload(stage: Stage) -> None:
    """With another stream changed, gone, or as it was: `train` must not notice."""
    changes = stage.chance.choice(
        [{"other": stage.streams["other"] | {"batch_size": stage.chance.choice([4, 8, 32])}}, {}, stage.streams]
    )
    stage.write_config({"train": stage.streams["train"]} | changes)
    _hang_up(stage, "reload.done")


def reload_a_mistake(stage: Stage) -> None:
    good = json.loads(stage.daemon.config.read_text())["streams"]
    stage.write_config({"train": stage.streams["train"] | {"batch_size": 0}})
    _hang_up(stage, "reload.failed")
    stage.write_config(good)


def _hang_up(stage: Stage, answer: str) -> None:
    said = stage.daemon.log.read_text().count(f" {answer}: ")
    stage.daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: stage.daemon.log.read_text().count(f" {answer}: ") > said, f"{answer} is logged")


# --- workers


def _a_worker(stage: Stage) -> int:
    return stage.chance.choice(stage.daemon.workers())


def kill_worker(stage: Stage) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(_a_worker(stage), signal.SIGKILL)


def stop_worker(stage: Stage) -> None:
    worker = _a_worker(stage)
    os.kill(worker, signal.SIGSTOP)
    stage.later(stage.chance.uniform(1, 40), partial(wake, [worker]))


# --- trainers


def _mortals(stage: Stage) -> list[Watched]:
    return [each for each in stage.running() if not each.lasting and each.trainer.orders.gated]


def kill_trainer(stage: Stage) -> None:
    """Kill -9 and, after a moment, again from its checkpoint."""
    for each in _some(stage):
        _kill(stage, each)


def _some(stage: Stage) -> list[Watched]:
    """One trainer that comes to an end anyway, if there is one that runs."""
    several = _mortals(stage)
    return [stage.chance.choice(several)] if several else []


def _kill(stage: Stage, each: Watched) -> None:
    process = each.trainer.process
    process.kill()
    process.wait(LIMIT_S)
    for pipe in (process.stdin, process.stdout):  # a forked child may hold the other ends
        with contextlib.suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]  # both are there
    time.sleep(stage.chance.uniform(0, 2))
    each.resume()


def stop_trainer(stage: Stage) -> None:
    """Any of them, the lasting one too."""
    each = stage.chance.choice([each for each in stage.running() if each.trainer.orders.gated])
    each.stopped = True
    killers.stop(each.pid)

    def go_on() -> None:
        if each in stage.watched and each.stopped:
            killers.go_on(each.pid)
            each.stopped = False

    stage.later(stage.chance.uniform(2, 45), go_on)


def fork_trainer(stage: Stage) -> None:
    """A child that keeps what it inherited for a while; one time in two the parent dies meanwhile."""
    for each in _some(stage):
        child = each.trainer.fork()
        stage.later(stage.chance.uniform(5, 40), partial(_end_child, each, child))
        if stage.chance.random() < 0.5:  # noqa: PLR2004 - one in two
            _kill(stage, each)


def _end_child(parent: Watched, child: int) -> None:
    parent.trainer.children.remove(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def slow_trainer(stage: Stage) -> None:
    """Ten times slower and more, for a while."""
    for each in _some(stage):
        usual, each.rate = each.rate, min(each.rate, SLOW_RATE)
        stage.later(stage.chance.uniform(10, 40), partial(setattr, each, "rate", usual))


def guest(stage: Stage) -> None:
    """A trainer that comes, reads as fast as it can, from the beginning or from where the others are, and goes."""
    stage.join("guest", 0.0, epochs=GUEST_EPOCHS, gated=False, checkpoint_every=0, live=stage.chance.random() < 0.5)  # noqa: PLR2004 - one in two


# --- the world


def damage_file(stage: Stage) -> None:
    """A sample that was good is no picture any more."""
    known = stage.truth.may_be_bad
    sample = stage.chance.choice([each for each in range(stage.truth.spec.samples) if each not in known])
    known.add(sample)
    (stage.truth.served.manifest.root / stage.truth.served.format_file_name(sample)).write_bytes(b"no picture")


def visit(stage: Stage) -> None:
    """Somebody looks how it is going, and two others read an epoch."""
    ask = [sys.executable, "-m", "streamd.cli.main"]
    there = ["--endpoint", stage.daemon.endpoint, "--json"]
    looked = subprocess.run([*ask, "status", *there], capture_output=True, text=True, check=False)
    if looked.returncode:
        stage.complain(f"streamd status ended with {looked.returncode}: {looked.stdout}{looked.stderr}")
    stage.visitors.append(
        subprocess.Popen([*ask, "probe", "train", "--trainers", "2", *there], stdout=subprocess.DEVNULL)
    )


FAULTS: Final = (
    Fault("kill -9 of the daemon", kill_daemon, ends_daemon=True),
    Fault("kill -9 of the daemon and its workers", kill_daemon_and_workers, ends_daemon=True),
    Fault("SIGTERM and the next daemon", terminate_daemon, ends_daemon=True),
    Fault("the daemon stopped for a while", stop_daemon),
    Fault("reload", reload),
    Fault("reload of a mistake", reload_a_mistake),
    Fault("kill -9 of a worker", kill_worker),
    Fault("a worker stopped for a while", stop_worker),
    Fault("kill -9 of a trainer, resumed from its checkpoint", kill_trainer),
    Fault("a trainer stopped for a while", stop_trainer),
    Fault("a trainer forks", fork_trainer),
    Fault("a trainer becomes slow for a while", slow_trainer),
    Fault("a guest reads four epochs as fast as it can", guest),
    Fault("a file is damaged", damage_file),
    Fault("status and probe beside the trainers", visit),
)
