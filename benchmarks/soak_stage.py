"""The soak's stage: one daemon, trainers that write down all they take, and the oracle that reads along.

The daemon, the trainers and the oracle are those of tests/faults; `scripts/bench soak` makes them importable.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import killers
from logged import LoggedTrainer
from logging_trainer import ALL
from oracle import Account, Judge, Truth
from soak_results import Totals
from support.daemon_process import LIMIT_S, DaemonProcess, stream_config, wait_until, write_images

import streamd
from streamd.core.status import DaemonStatus

IMAGES: Final = 3000
SIDE: Final = 96  # pixels; large enough that decoding is work
BATCH: Final = 16
MEMORY_BYTES: Final = 48 << 20  # the trainers' full credit is about half of it
WORKERS: Final = 3
LAST_S: Final = 180.0  # for all that trainers still have to read at the end
HANGS_S: Final = 60.0  # a trainer that may go on takes a batch within that time, or it hangs
CHECKPOINT_EVERY: Final = 7  # batches


@dataclass(slots=True)
class Watched:
    """A trainer whose log is judged as it grows. Its gate lets `rate` batches a second through."""

    trainer: LoggedTrainer
    judge: Judge
    rate: float
    lasting: bool = False
    allowed: float = 0.0  # in this life
    stopped: bool = False
    steps: int = 0  # that were judged
    moved_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.trainer.log.stem

    @property
    def pid(self) -> int:
        return self.trainer.process.pid

    @property
    def runs(self) -> bool:
        """Whether it is there and not stopped."""
        return not self.stopped and self.trainer.process.poll() is None

    def pace(self, passed_s: float) -> None:
        """Opens the gate for what is due; what could not be taken while a daemon was away is caught up with."""
        if self.runs and self.trainer.orders.gated:
            self.allowed += self.rate * passed_s
            with contextlib.suppress(BrokenPipeError):  # it came to its end in this moment
                self.trainer.allow(int(self.allowed))

    def look(self) -> None:
        """Judges what is new."""
        self.judge.read()
        standing = self.judge.account.steps + self.judge.account.again
        if standing != self.steps or not self.runs:
            self.steps, self.moved_s = standing, time.monotonic()

    def hangs(self) -> bool:
        return time.monotonic() - self.moved_s > HANGS_S

    def resume(self) -> None:
        """Starts it again after its end; it goes on from its checkpoint."""
        self.allowed, self.stopped = 0.0, False
        self.trainer.start()


def _stream(place: Path, name: str, images: int) -> dict[str, Any]:
    """The configuration of a stream over a folder of its own, whose classes are its own, too."""
    folder = write_images(place / name, {"cat": images // 2, "dog": images // 2}, size=(SIDE, SIDE))
    return stream_config(
        folder,
        image={"size": [SIDE, SIDE]},
        batch_size=BATCH,
        labels={f"{name} label": "category"},
        bad_samples={"policy": "substitute", "max_fraction": 0.05},
    )


class Stage:
    """All that lives. `later` has something done at its time; `problems` is what must not have happened.

    A trainer comes to its end after `epochs`; then its log is judged whole, and the next one begins.
    """

    def __init__(self, place: Path, chance: random.Random, epochs: int) -> None:
        self.place = place
        self.chance = chance
        self.epochs = epochs
        self.streams = {name: _stream(place, name, images) for name, images in (("train", IMAGES), ("other", 200))}
        home = place / "daemon"
        home.mkdir()
        settings = {"memory": f"{MEMORY_BYTES >> 20}MiB", "workers": WORKERS}
        self.daemon = DaemonProcess(home, {**settings, "streams": self.streams}).start()
        self.served_since_s = time.monotonic()
        self.life = 1
        self.truth = Truth({"streams": {"train": self.streams["train"]}}, "train", place / "truth")
        self.watched: list[Watched] = []
        self.visitors: list[subprocess.Popen[bytes]] = []
        self.problems: list[str] = []
        self.ended = Totals()
        self.outstanding: list[int] = []  # batches lent or on their way, each time that a daemon was killed
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    # --- time

    def later(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._numbers), what))

    def run_until(self, end_s: float) -> None:
        """Does what is due, and waits for the next; returns at `end_s`, in monotonic seconds."""
        while (now_s := time.monotonic()) < end_s:
            if self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2]()
            else:
                next_s = self._due[0][0] if self._due else end_s
                time.sleep(max(0.0, min(next_s, end_s) - now_s))

    # --- trainers

    def join(self, kind: str, rate: float, *, lasting: bool = False, **orders: Any) -> Watched:
        """Starts a trainer of a new name. One that is not `lasting` comes to an end by itself."""
        orders = {
            "epochs": None if lasting else self.epochs,
            "gated": True,
            "checkpoint_every": CHECKPOINT_EVERY,
        } | orders
        log = self.place / f"{kind}-{next(self._numbers)}.log"
        log.touch()  # read before it has written
        trainer = LoggedTrainer(self.daemon.endpoint, log, **orders)
        judge = Judge(self.truth, log, epochs=orders["epochs"], live=orders.get("live", False))
        watched = Watched(trainer.start(), judge, rate, lasting)
        self.watched.append(watched)
        return watched

    def running(self) -> list[Watched]:
        return [each for each in self.watched if each.runs]

    def look(self) -> None:
        """Reads all logs on, replaces trainers that came to their end, and notices those that hang or fell."""
        for each in list(self.watched):
            each.look()
            if each.trainer.process.poll() is not None:
                self._replace(each)
            elif each.hangs():
                self.complain(f"{each.name} has taken nothing for {HANGS_S:g} s, at step {each.steps}")
                each.moved_s = time.monotonic()
        for visitor in [each for each in self.visitors if each.poll() is not None]:
            self.visitors.remove(visitor)
            self._came_to_its_end("a probe", visitor)
        if self.daemon.process.poll() is not None:
            self.complain(f"the daemon ended by itself, with status {self.daemon.process.returncode}")
            self.begin_again()

    def _replace(self, ended: Watched) -> None:
        if ended.trainer.process.returncode:
            self.complain(f"{ended.name} ended with status {ended.trainer.process.returncode}")
        self.dismiss(ended, whole=not ended.trainer.process.returncode)
        if ended.trainer.orders.gated:  # a guest is not replaced
            self.join(ended.name.partition("-")[0], ended.rate)

    def dismiss(self, watched: Watched, *, whole: bool) -> None:
        """Takes leave of a trainer, judging its log, which `whole` says must come to a good end."""
        watched.trainer.abandon()
        account = watched.judge.finish() if whole else watched.judge.read()
        self.problems += account.problems
        self.ended += self._totals_of(account)
        self.watched.remove(watched)
        watched.trainer.log.unlink(missing_ok=True)  # an hour of logs would be too much to keep

    def finish(self) -> None:
        """Has all come to their end, and the daemon too, and looks at what is left."""
        wake([*self.daemon.workers(), *(each.pid for each in self.watched)])
        for each in list(self.watched):
            if each.lasting:
                self.dismiss(each, whole=False)
            elif each.trainer.orders.gated:
                each.trainer.allow(ALL)
        for each in list(self.watched):
            self.dismiss(each, whole=self._came_to_its_end(each.name, each.trainer.process))
        for visitor in self.visitors:
            self._came_to_its_end("a probe", visitor)
        workers = self.daemon.workers()
        self._check("the daemon's exit status", self.daemon.terminate(), 0)
        killers.wait_gone(workers)
        self._check("files left beside the endpoint", killers.left_behind(self.daemon), [])

    def _came_to_its_end(self, name: str, process: subprocess.Popen[Any]) -> bool:
        try:
            return self._check(f"{name}: its exit status", process.wait(LAST_S), 0)
        except subprocess.TimeoutExpired:
            self.complain(f"{name} does not come to its end in {LAST_S:g} s")
            return False

    def _check(self, what: str, found: object, wanted: object) -> bool:
        if found != wanted:
            self.complain(f"{what}: {found}, not {wanted}")
        return found == wanted

    def complain(self, what: str) -> None:
        """Notes what must not have happened."""
        self.problems.append(what)
        print(f"PROBLEM: {what}", flush=True)

    def totals(self) -> Totals:
        """Over all trainers that came to their end, and those that run."""
        return sum((self._totals_of(each.judge.account) for each in self.watched), self.ended)

    def _totals_of(self, account: Account) -> Totals:
        epochs = account.steps // self.truth.spec.batches
        return Totals(account.steps + account.again, account.again, epochs, account.lives)

    # --- the daemon

    def status(self) -> DaemonStatus:
        with streamd.connect(self.daemon.endpoint) as client:
            return client.status()

    def count_outstanding(self) -> None:
        """Notes for the page how many batches the trainers hold or are being sent."""
        self.outstanding.append(sum(session.held for session in self.status().sessions))

    def begin_again(self) -> None:
        """The next daemon."""
        self.daemon.start()
        self.served_since_s = time.monotonic()
        self.life += 1

    def write_config(self, streams: dict[str, Any]) -> None:
        config = json.loads(self.daemon.config.read_text())
        self.daemon.config.write_text(json.dumps(config | {"streams": streams}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing of it is left."""
        for each in self.watched:
            each.trainer.abandon()
        for visitor in self.visitors:
            visitor.kill()
            visitor.wait()
        self.daemon.kill()


def wake(pids: list[int]) -> None:
    """SIGCONT to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            killers.go_on(pid)


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


def kill_daemon(stage: Stage, *, alone: bool) -> None:
    """The daemon alone, or its workers with it."""
    workers = stage.daemon.workers()
    stage.count_outstanding()
    if alone:
        stage.daemon.process.kill()
    else:
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


def kill_trainer(stage: Stage) -> None:
    """Kill -9 and, after a moment, again from its checkpoint."""
    for each in _some(stage):
        _kill(stage, each)


def _some(stage: Stage) -> list[Watched]:
    """One trainer that comes to an end anyway, if there is one that runs."""
    several = [each for each in stage.running() if not each.lasting and each.trainer.orders.gated]
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
    Fault("kill -9 of the daemon", partial(kill_daemon, alone=True), ends_daemon=True),
    Fault("kill -9 of the daemon and its workers", partial(kill_daemon, alone=False), ends_daemon=True),
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
