"""A daemon as a service runs it, honest trainers of two users, and attackers of a third that may reach its socket.

What an attack did is judged by `Siege.end`: the trainers' accounts, the daemon's process, memory and log, and whether
a newcomer is served.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from attacker import ENVIRONMENT, Attacker
from logged import LoggedTrainer, running
from oracle import Truth
from proc_figures import count_cpu_s, find_children, read_rss_bytes, read_slot_bytes
from scene import FULL
from support.audit_watch import Watch, watch_processes
from support.daemon_process import DaemonProcess, stream_config, wait_until, write_images
from users import ATTACKER, NEIGHBOUR, NEWCOMER, OWNER, ROOT, User, check_that_users_can_be_had

import streamd
from streamd import Client
from streamd.limits import HELPER_NICENESS, MIB

LIMIT_S: Final = 180.0
MAX_GROWTH_BYTES: Final = 32 * MIB  # of the daemon's own memory, over an attack
PHASE_S: Final = 3.0 if FULL else 0.0  # the least time over which a rate is taken
STEPS: Final = 300 if FULL else 60  # that every honest trainer takes in a round
ROUNDS: Final = 3 if FULL else 1  # of the attack; in full each is followed by one beside a busy loop
_LOOKS: Final = 5
_FILL_SHM: Final = 'mount -t tmpfs -o size=64k none /dev/shm && head -c 65536 /dev/zero > /dev/shm/full && exec "$@"'
_HAND_OVER: Final = 'exec 3<&"$1" 4<&"$2"; shift 2; export LISTEN_FDS=2 LISTEN_PID=$$; exec "$@"'
_UNHANDLED: Final = re.compile(r"Traceback|Unhandled|never retrieved|Assertion failed| data\.away")
_GATE_END: Final = " gate.ended: the gate of user"  # with the last words of the gate, which an attacker may end
Record = Callable[[str, object], None]


class ServiceDaemon(DaemonProcess):
    """`streamd serve` as OWNER, at a socket that only the group can reach.

    `max_files` bounds its descriptors. `is_activated`: its sockets are handed over, as systemd does it.
    `is_shm_full`: what it sees at /dev/shm is a file system without room.
    """

    def __init__(
        self,
        place: Path,
        config: dict[str, object],
        *,
        max_files: int | None = None,
        is_activated: bool = False,
        is_shm_full: bool = False,
    ) -> None:
        place.chmod(0o750)
        super().__init__(place, config, listen_remotely="curve" in config)
        self._environment = {**self._environment, **ENVIRONMENT}
        self._max_files = max_files
        self._is_shm_full = is_shm_full
        self._sockets.chmod(0o750)
        OWNER.own(self._sockets, place, self.config)
        self._handed = self._bind_sockets() if is_activated else []

    def watch_processes(self, place: Path) -> Watch:
        """Has the daemon, its gates and its workers watched for what they never do. To be called before it starts."""
        place.mkdir()
        seen = watch_processes(place, place.parent, self._sockets)
        OWNER.own(place)
        self._environment |= seen.environment
        return seen

    def _bind_sockets(self) -> list[socket.socket]:
        path = self.endpoint.removeprefix("ipc://")
        links = []
        for kind, name in ((socket.SOCK_STREAM, path), (socket.SOCK_SEQPACKET, f"{path}.fd")):
            link = socket.socket(socket.AF_UNIX, kind)
            link.bind(name)
            Path(name).chmod(0o660)
            OWNER.own(Path(name))
            link.listen(4096)
            links.append(link)
        return links

    def _list(self) -> None:
        super()._list()
        OWNER.own(self.state, *self.state.rglob("*"))

    def _run(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        command = [*OWNER.build_prefix(), sys.executable, "-m", "streamd.cli.main", *arguments]
        if self._max_files is not None:
            command = ["prlimit", f"--nofile={self._max_files}", *command]
        if self._is_shm_full:
            command = ["unshare", "--mount", "sh", "-c", _FILL_SHM, "sh", *command]
        numbers = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in self._handed]
        if numbers:
            command = ["bash", "-c", _HAND_OVER, "bash", *map(str, numbers), *command]
        try:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    command, stderr=log, stdout=log, env=self._environment, cwd=ROOT, pass_fds=numbers
                )
        finally:
            for number in numbers:
                os.close(number)

    def kill(self) -> None:
        super().kill()
        for link in self._handed:
            link.close()

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass(frozen=True, slots=True)
class Phase:
    """A time of an attack, in shares of a second: what the trainers took, and the processor time that it took.

    `rate` counts batches of all trainers and `distinct_rate` each of them once. `share` is the processor time of the
    attackers and their gates, and `workers_share` that of all workers.
    """

    rate: float
    distinct_rate: float
    longest_wait_s: float
    share: float
    workers_share: float

    def count_decode_s(self) -> float:
        """Returns the workers' time for one batch."""
        return self.workers_share / self.distinct_rate


class Siege:
    """The scene. `trainers` read `train` without pause: one as the daemon's own user, one as another member."""

    def __init__(
        self, place: Path, daemon: ServiceDaemon, truth: Truth, memory_bytes: int, seen: Watch | None = None
    ) -> None:
        self.place, self.daemon, self.truth = place, daemon, truth
        self.pid = daemon.pid
        self.trainers = [self.build_trainer(user, f"trainer-{user.uid}") for user in (OWNER, NEIGHBOUR)]
        self._newcomers: list[LoggedTrainer] = []
        self._memory_bytes = memory_bytes
        self._rss_bytes = 0
        self._most_shared_bytes = 0
        self._attacker_pids: list[int] = []
        self._rss_growth_bytes = 0
        self._numbers = itertools.count()
        self._waits_s: list[float] = []
        self._ratios: list[float] = []
        self._asker: Client | None = None
        self._longest_answer_s = 0.0
        self._most_worker_bytes = 0
        self._watch = seen
        self.counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def measure_loop_and_workers(self) -> Iterator[None]:
        """Measures at every look how long the daemon's user waits for an answer, and how much its workers hold."""
        with streamd.connect(self.daemon.endpoint) as self._asker:
            yield
        self._asker = None

    @contextlib.contextmanager
    def use_up_tasks(self) -> Iterator[None]:
        """Lets the daemon start no process and no thread; neither do its gates that begin in this time."""
        limits = Path(f"/proc/{self.pid}/limits").read_text()
        most = re.findall(r"^Max processes +(\w+)", limits, re.MULTILINE)[0]
        self._set_most_tasks("0")
        try:
            yield
        finally:
            self._set_most_tasks(most)

    def _set_most_tasks(self, most: str) -> None:
        # By the daemon's own user: to root, without all its rights, the kernel refuses it.
        command = ["prlimit", "--pid", str(self.pid), f"--nproc={most}:"]
        subprocess.run([*OWNER.build_prefix(), *command], check=True)

    def check_configuration(self, streams: Mapping[str, object]) -> str:
        """Runs `streamd check` as the daemon's user, and returns why it refuses these streams."""
        folder = self.place / "checked"
        folder.mkdir()
        (folder / "config.yaml").write_text(json.dumps({"streams": streams}))
        command = [sys.executable, "-m", "streamd.cli.main", "check", "--config", str(folder / "config.yaml")]
        done = subprocess.run(
            [*OWNER.build_prefix(), *command], env={**os.environ, **ENVIRONMENT}, cwd=ROOT, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.strip()

    def build_trainer(self, user: User, name: str, **orders: Any) -> LoggedTrainer:
        """Builds a trainer of a user, with a folder of its own for its account."""
        folder = self.place / name
        folder.mkdir()
        user.own(folder)
        wanted = {"epochs": None, "until_told": True, **orders}
        return LoggedTrainer(
            self.daemon.endpoint, folder / "log", environment=ENVIRONMENT, prefix=user.build_prefix(), **wanted
        )

    def begin(self) -> Self:
        """Waits until every trainer reads, and notes the daemon's memory."""
        for each in self.trainers:
            each.wait_for(STEPS)
        self._rss_bytes = read_rss_bytes(self.pid, "RssAnon")
        return self

    def watch(self) -> None:
        """Takes the daemon's measure. Raises AssertionError if it has ended."""
        status = self.daemon.process.poll()
        assert status is None, f"the daemon ended with status {status}: {self.daemon.read_log()[-1500:]}"
        self._most_shared_bytes = max(self._most_shared_bytes, self._read_shared_bytes())
        self._rss_growth_bytes = max(self._rss_growth_bytes, read_rss_bytes(self.pid, "RssAnon") - self._rss_bytes)
        if self._asker is not None:
            self._measure_answer(self._asker)

    def _measure_answer(self, asker: Client) -> None:
        workers = find_children(self.pid, "worker")
        self._most_worker_bytes = max([self._most_worker_bytes, *(read_rss_bytes(pid, "RssAnon") for pid in workers)])
        begin_s = time.monotonic()
        asker.names("train", [0])
        self._longest_answer_s = max(self._longest_answer_s, time.monotonic() - begin_s)

    def _read_shared_bytes(self) -> int:
        # Slots are looked at one after the other. One that was made since another was looked at and dropped counts too
        # much, but not again and again.
        for _ in range(_LOOKS):
            shared_bytes = read_slot_bytes([self.pid, *self._attacker_pids])
            if shared_bytes <= self._memory_bytes:
                break
        return shared_bytes

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition, with an eye on the daemon."""

        def holds() -> bool:
            self.watch()
            return bool(condition())

        wait_until(holds, what, LIMIT_S)

    def withstand(
        self,
        name: str,
        *,
        attackers: int = 1,
        rounds: int = 20,
        user: User = ATTACKER,
        is_joined: bool = False,
        is_reading: bool = False,
    ) -> None:
        """Attacks, until every attacker has made its rounds and every trainer its steps; in full several times.

        `is_joined`: a newcomer of another user comes in the midst of it and reads an epoch. `is_reading`: the attackers
        have batches decoded, as every member may; the busy loop then takes as much more as the workers spent on that.
        """
        # In the first seconds trainers have yet to fall into step, which must not count as the attack's doing.
        decode_s = self._run_phase([], 0).count_decode_s() if FULL else 0.0
        for _ in range(ROUNDS):
            started = [self.start_attacker(name, user) for _ in range(attackers)]
            attack = self._run_phase(started, rounds, self._admit_newcomer if is_joined else lambda: None)
            self._waits_s.append(attack.longest_wait_s)
            if FULL:
                burners = self._start_burners(attack.share, user)
                if is_reading:
                    read_share = max(0.0, attack.workers_share - decode_s * attack.distinct_rate)
                    burners += self._start_burners(read_share, user, niceness=HELPER_NICENESS)
                self._ratios.append(attack.rate / self._run_phase(burners, 1).rate)

    def _start_burners(self, share: float, user: User, niceness: int = 0) -> list[Attacker]:
        """Starts busy loops that take a share of a processor, or of several, with the priority of workers or users."""
        cores = math.ceil(share)
        started = [self.start_attacker("burn", user, f"{share / cores}") for _ in range(cores)]
        for each in started:
            os.setpriority(os.PRIO_PROCESS, each.process.pid, niceness)
        return started

    def start_attacker(self, name: str, user: User = ATTACKER, *options: str) -> Attacker:
        """Starts an attacker, which the caller ends."""
        attacker = Attacker(
            name, self.daemon.endpoint, self.place / f"attacker-{next(self._numbers)}.log", user, options
        )
        self._attacker_pids.append(attacker.process.pid)
        return attacker

    def _run_phase(self, attackers: Sequence[Attacker], rounds: int, act: Callable[[], None] = lambda: None) -> Phase:
        first = [each.look() for each in self.trainers]
        gates_s, workers_s, begin_s = self._count_cpu_s("gate"), self._count_cpu_s("worker"), time.monotonic()
        try:
            self.wait(
                lambda: all(
                    [time.monotonic() - begin_s >= PHASE_S]
                    + [each.look() >= at + STEPS for each, at in zip(self.trainers, first, strict=True)]
                    + [each.has_done(rounds) for each in attackers]
                ),
                "the attackers have made their rounds, and the trainers their steps",
            )
            act()
            spent_s = sum(count_cpu_s(each.process.pid) for each in attackers) + self._count_cpu_s("gate") - gates_s
            workers_s = max(0.0, self._count_cpu_s("worker") - workers_s)
        finally:
            for each in attackers:
                each.kill()
        for each in attackers:
            self.counts.update(each.counts)
        taken = [each.steps[at - 1 :] for each, at in zip(self.trainers, first, strict=True)]
        times_s = [[step.ns / 1e9 for step in steps] for steps in taken]
        took_s = time.monotonic() - begin_s
        return Phase(
            sum((len(each) - 1) / (each[-1] - each[0]) for each in times_s),
            len({(step.epoch, step.index) for steps in taken for step in steps}) / took_s,
            max(after - before for each in times_s for before, after in itertools.pairwise(each)),
            spent_s / took_s,
            workers_s / took_s,
        )

    def _count_cpu_s(self, role: str) -> float:
        """Returns the processor time of the daemon's children of a kind."""
        return sum(count_cpu_s(pid) for pid in find_children(self.pid, role))

    def _admit_newcomer(self) -> None:
        newcomer = self.build_trainer(NEWCOMER, f"newcomer-{next(self._numbers)}", epochs=1, until_told=False)
        self._newcomers.append(newcomer)
        with running(newcomer):
            self.wait(lambda: newcomer.process.poll() is not None, "a newcomer has read an epoch")
            newcomer.finish()

    def end(self, record: Record) -> None:
        """Judges what has come of it, and records what was seen. Raises AssertionError with all that is wrong."""
        self._admit_newcomer()
        for each in self.trainers:
            each.send(signal.SIGTERM)
        for each in self.trainers:
            each.finish()
        self.watch()
        record("saw", self._describe())
        problems = [
            problem for each in (*self.trainers, *self._newcomers) for problem in each.judge(self.truth).problems
        ]
        if self._rss_growth_bytes > MAX_GROWTH_BYTES:
            problems.append(f"the daemon's own memory grew by {self._rss_growth_bytes:,} bytes")
        if self._most_shared_bytes > self._memory_bytes:
            problems.append(f"shared memory took {self._most_shared_bytes:,} of {self._memory_bytes:,} bytes")
        if self.daemon.pid != self.pid:
            problems.append("another daemon runs now")
        if self._watch is not None:
            problems += [f"it did what it never does: {fault}" for fault in self._watch.find_faults()][:5]
        lines = self.daemon.read_log().splitlines()
        problems += [line for line in lines if _UNHANDLED.search(line) and _GATE_END not in line][:5]
        assert not problems, "; ".join(problems)

    def _describe(self) -> str:
        parts = [f"{count:,} {name}" for name, count in sorted(self.counts.items())]
        if self._ratios:
            ratios = ", ".join(f"{each:.2f}" for each in sorted(self._ratios))
            parts.append(
                f"rate beside it {statistics.median(self._ratios):.2f} of that beside as much computing ({ratios})"
            )
        if self._waits_s:
            parts.append(f"longest wait {max(self._waits_s):.2f} s")
        if self._most_worker_bytes:
            parts.append(f"longest answer to the daemon's user {self._longest_answer_s * 1000:.0f} ms")
            parts.append(f"a worker's own memory at most {self._most_worker_bytes / MIB:,.0f} MiB")
        if self._watch is not None:
            parts.append(f"{len(self._watch.list_commands().splitlines())} processes watched")
        parts.append(f"own memory +{self._rss_growth_bytes / MIB:.1f} MiB")
        parts.append(f"shared memory at most {self._most_shared_bytes / self._memory_bytes:.0%} of what it may take")
        return "; ".join(parts)


@contextlib.contextmanager
def besiege(
    *,
    images: int = 256,
    memory_bytes: int = 32 * MIB,
    max_files: int | None = None,
    is_activated: bool = False,
    is_shm_full: bool = False,
    is_watched: bool = False,
    kind: type[Siege] = Siege,
    settings: Mapping[str, object] | None = None,
    streams: Callable[[Path], dict[str, dict[str, object]]] = lambda _: {},
    **stream: object,
) -> Iterator[Siege]:
    """Runs the scene, in a short folder that all users can pass. `stream` are keys of `train`; `streams` adds others.

    `kind` is the scene's. `is_watched`: an audit hook sees all that the daemon and its processes do. A failed attack
    leaves nothing running.
    """
    check_that_users_can_be_had()
    place = Path(tempfile.mkdtemp(prefix="abuse-"))
    place.chmod(0o711)
    try:
        folder = write_images(place / "data", {"cat": images // 2, "dog": images - images // 2}, size=(32, 32))
        train = stream_config(folder, **{"batch_size": 2, **stream})
        (place / "daemon").mkdir()
        config = {"memory": memory_bytes, **(settings or {}), "streams": {"train": train, **streams(place)}}
        (place / "truth").mkdir()
        truth = Truth({"streams": {"train": train}}, "train", place / "truth")
        daemon = ServiceDaemon(
            place / "daemon", config, max_files=max_files, is_activated=is_activated, is_shm_full=is_shm_full
        )
        seen = daemon.watch_processes(place / "watch") if is_watched else None
        with contextlib.closing(truth), daemon:
            siege = kind(place, daemon, truth, memory_bytes, seen)
            with running(*siege.trainers):
                yield siege.begin()
    finally:
        shutil.rmtree(place)
