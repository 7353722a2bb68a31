"""What a trainer on another host gets over a link that is far, lossy or cut; as root, since it makes a link of its own.

    python benchmarks/remote.py all       # all of these, and results/remote.md with their figures, 20 minutes
    python benchmarks/remote.py rate      # 1 Gbit/s, 100 ms: the gate beside ROUTER and DEALER alone, five rounds
    python benchmarks/remote.py loss      # the same link with 5 % loss, for minutes
    python benchmarks/remote.py cut       # what a cut of 45 s costs
    python benchmarks/remote.py slow      # batches of 20 MB over 10 Mbit/s, each of which takes 16 s
    python benchmarks/remote.py kill      # kill -9 of the gate: what a trainer of the daemon's host keeps

The link is a process between two TUN devices, `link/slow_link.c`, each in a network namespace of its own. `cc` compiles
it. Prints one JSON object a measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import run
import zmq
from remote_page import build_report
from report import RESULTS, finish

HERE: Final = Path(__file__).resolve().parent
NEAR, FAR, PORT = "10.77.0.1", "10.77.0.2", 5555
CREDIT: Final = 64
ROWS, SIZE = 32, 128
SLOW_SIZE: Final = 460  # makes batches of 20 MB
BATCH_BYTES: Final = ROWS * SIZE * SIZE * 3
BUFFERS: Final = "4096 131072 67108864"  # the kernel's usual 4 MiB to send is less than is under way at 100 ms
STOP_S: Final = 30.0
LOSSY_S: Final = 300.0
KINDS: Final = ("rate", "loss", "cut", "slow", "kill")


class Link:
    """Two namespaces, `near` and `far`, and the process between them."""

    def __init__(self, folder: Path, *, bits_per_s: float, delay_ms: float, loss: float) -> None:
        self.near, self.far = (f"sd{os.getpid()}{side}" for side in "nf")
        self._program = folder / "slow_link"
        self._arguments = [str(bits_per_s), str(delay_ms), str(loss), "100"]
        subprocess.run([_find_program("cc"), "-O2", "-o", self._program, HERE / "link" / "slow_link.c"], check=True)

    def __enter__(self) -> Self:
        ends = {self.near: (f"{self.near}0", NEAR), self.far: (f"{self.far}0", FAR)}
        devices = [device for device, _ in ends.values()]
        self._process = subprocess.Popen(
            [self._program, *devices, *self._arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if self._process.stdout is not None:
            self._process.stdout.readline()  # it is up
        for name, (device, address) in ends.items():
            peer = FAR if address == NEAR else NEAR
            _ip("netns", "add", name)
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", address, "peer", peer, "dev", device)
            _ip("-n", name, "link", "set", device, "mtu", "1500", "txqueuelen", "20000", "up")
            for key in ("tcp_rmem", "tcp_wmem"):
                write = f"echo {BUFFERS} > /proc/sys/net/ipv4/{key}"
                subprocess.run([_find_program("ip"), "netns", "exec", name, "sh", "-c", write], check=True)
        return self

    def set_loss(self, percent: float) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{percent}\n".encode())
            self._process.stdin.flush()

    def start(self, name: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a program in a namespace."""
        return subprocess.Popen([_find_program("ip"), "netns", "exec", name, *words], **options)

    def start_role(self, name: str, role: str, *words: str) -> subprocess.Popen[bytes]:
        """Starts this program in a namespace, as a part of a measurement."""
        return self.start(name, sys.executable, __file__, role, *words, stdout=subprocess.PIPE)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        for name in (self.near, self.far):
            _ip("netns", "delete", name)


def _find_program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"this measurement needs the program {name}")
    return path


def _ip(*words: str) -> None:
    subprocess.run([_find_program("ip"), *words], check=True)


# --- the daemon


@contextlib.contextmanager
def run_daemon(link: Link, folder: Path, size: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a daemon in the near namespace, whose stream of images of this size lies in memory: cheap to produce."""
    for name in ("daemon", "me"):
        subprocess.run([sys.executable, "-m", "streamd.cli.main", "keygen", folder / name], check=True, stdout=2)
    (folder / "clients").mkdir()
    (folder / "me" / "me.key").rename(folder / "clients" / "me.key")
    pixels = np.random.default_rng(0).integers(0, 256, (2048 * SIZE**2 // size**2, size, size, 3), np.uint8)
    np.save(folder / "images.npy", pixels)
    config = {
        "listen": [f"ipc://{folder}/s", f"tcp://{NEAR}:{PORT}"],
        "curve": {"secret": str(folder / "daemon" / "daemon.key_secret"), "clients": str(folder / "clients")},
        "workers": 1,
        "streams": {
            "train": {
                "source": {"kind": "npy", "path": str(folder / "images.npy")},
                "image": {"size": "stored"},
                "labels": {},
                "batch_size": ROWS,
            }
        },
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "streamd.cli.main", "serve", "--config", str(folder / "config.yaml")]
    environment = {**os.environ, "STATE_DIRECTORY": str(folder / "state")}
    with (folder / "log").open("wb") as log:
        daemon = link.start(link.near, *command, stderr=log, env=environment)
        try:
            while b"daemon.ready" not in (folder / "log").read_bytes():
                if daemon.poll() is not None:
                    raise SystemExit((folder / "log").read_text())
                time.sleep(0.1)  # the daemon says when it is ready
            yield daemon
        finally:
            daemon.terminate()
            daemon.wait(STOP_S)


def read_stream(endpoint: str, folder: str, seconds: float) -> dict[str, Any]:
    """Reads a stream, and returns its rate in MB/s, the time of each batch, and its receipts."""
    import streamd  # noqa: PLC0415 - not in the roles without it

    curve = {"secret": f"{folder}/me/me.key_secret", "server": f"{folder}/daemon/daemon.key"}
    keys = curve if endpoint.startswith("tcp://") else None
    arrived: list[float] = []
    with (
        streamd.connect(endpoint, curve=keys, timeout=60) as client,
        client.subscribe("train", prefetch=CREDIT if keys else None) as stream,
    ):
        for batch in stream:
            batch.images[0, 0, 0, 0].item()
            arrived.append(time.monotonic())
            if arrived[-1] - arrived[0] > seconds:
                break
        oks = [receipt.ok for receipt in stream.receipts]
    pauses = [late - soon for soon, late in pairwise(arrived)]
    return {
        "mb_per_s": _rate(arrived),
        "receipts": len(oks),
        "all_ok": all(oks),
        "longest_pause_s": round(max(pauses), 2),
        "began_s": arrived[0],
        "arrived": [round(each - arrived[0], 3) for each in arrived],
    }


def _rate(arrived: list[float]) -> float:
    """Returns MB/s, without the first fifth of the time, in which TCP looks for the link's rate."""
    begin = arrived[0] + (arrived[-1] - arrived[0]) / 5
    late = [each for each in arrived if each >= begin]
    return round((len(late) - 1) * BATCH_BYTES / (late[-1] - late[0]) / 1e6, 1)


# --- ROUTER and DEALER alone


def send_plainly(server: str, seconds: float) -> None:
    """Sends batches to one DEALER with the same credit, encryption and congestion control, and does nothing else."""
    import socket  # noqa: PLC0415 - in this role alone

    public, secret = json.loads(server)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
    listener.bind((NEAR, PORT + 1))
    listener.listen()
    router = zmq.Context().socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
    router.setsockopt(zmq.USE_FD, listener.detach())
    router.bind(f"tcp://{NEAR}:{PORT + 1}")
    pixels = np.random.default_rng(0).integers(0, 256, BATCH_BYTES, np.uint8)
    end_s = time.monotonic() + seconds + STOP_S
    del public
    while time.monotonic() < end_s:
        if router.poll(1000):
            identity, granted = router.recv_multipart()
            for _ in range(int(granted)):
                router.send(identity, zmq.SNDMORE)
                router.send(pixels.data, copy=False)


def receive_plainly(server: str, seconds: float) -> dict[str, Any]:
    """Receives batches from `send_plainly`, and returns the rate in MB/s."""
    public, _ = json.loads(server)
    dealer = zmq.Context().socket(zmq.DEALER)
    mine = zmq.curve_keypair()
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RCVHWM, 0),
        (zmq.CURVE_SERVERKEY, public.encode()),
        (zmq.CURVE_PUBLICKEY, mine[0]),
        (zmq.CURVE_SECRETKEY, mine[1]),
    ):
        dealer.setsockopt(option, value)
    dealer.connect(f"tcp://{NEAR}:{PORT + 1}")
    dealer.send(str(CREDIT).encode())
    arrived: list[float] = []
    while not arrived or arrived[-1] - arrived[0] < seconds:
        if not dealer.poll(60_000):
            break
        dealer.recv(copy=False)
        arrived.append(time.monotonic())
        if len(arrived) % (CREDIT // 4) == 0:
            dealer.send(str(CREDIT // 4).encode())
    return {"mb_per_s": _rate(arrived)}


# --- measurements


def measure_rate(link: Link, folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """The gate beside ROUTER and DEALER alone, in turn."""
    gate, plain = [], []
    for _ in range(rounds):
        gate.append(_finish(link.start_role(link.far, "--read", f"tcp://{NEAR}:{PORT}", str(folder), str(seconds))))
        keys = json.dumps([each.decode() for each in zmq.curve_keypair()])
        sender = link.start_role(link.near, "--send", keys, "", str(seconds))
        plain.append(_finish(link.start_role(link.far, "--receive", keys, "", str(seconds))))
        sender.kill()
        sender.wait()
    ratios = [mine["mb_per_s"] / theirs["mb_per_s"] for mine, theirs in zip(gate, plain, strict=True)]
    return {
        "gate_mb_per_s": [each["mb_per_s"] for each in gate],
        "plain_mb_per_s": [each["mb_per_s"] for each in plain],
        "ratio": round(statistics.median(ratios), 3),
        "all_ok": all(each["all_ok"] for each in gate),
    }


def measure_loss(link: Link, folder: Path, seconds: float) -> dict[str, Any]:
    """The rate with loss, as the median of the seconds' rates."""
    read = _finish(link.start_role(link.far, "--read", f"tcp://{NEAR}:{PORT}", str(folder), str(seconds)))
    counts = np.bincount(np.array(read.pop("arrived")).astype(int))[:-1] * BATCH_BYTES / 1e6
    return {**read, "median_second_mb_per_s": round(float(np.median(counts)), 1)}


def measure_cut(
    link: Link, folder: Path, cut_s: float, *, before_s: float = 20.0, after_s: float = 40.0, loss: float = 0.0
) -> dict[str, Any]:
    """The longest pause of a trainer whose link is cut for a while. It loses `loss` percent before and after that."""
    reading_s = str(before_s + cut_s + after_s)
    reader = link.start_role(link.far, "--read", f"tcp://{NEAR}:{PORT}", str(folder), reading_s)
    time.sleep(before_s)  # the trainer reads
    link.set_loss(100)
    time.sleep(cut_s)  # the cut
    link.set_loss(loss)
    read = _finish(reader)
    del read["arrived"]
    return {**read, "cut_s": cut_s}


def measure_slow(link: Link, folder: Path) -> dict[str, Any]:
    """When large batches arrive over a slow link, and how many sessions that took: one, if none began anew."""
    read = _finish(link.start_role(link.far, "--read", f"tcp://{NEAR}:{PORT}", str(folder), "50"))
    sessions = (folder / "log").read_text().count("session.began")
    return {"arrived": read["arrived"], "all_ok": read["all_ok"], "sessions": sessions}


@dataclass(frozen=True)
class Mark:
    """A moment: the clock, and the processor time so far of the daemon, its workers and the local trainer."""

    clock_s: float
    processor_s: float


def measure_kill(
    link: Link, folder: Path, daemon: subprocess.Popen[bytes], rounds: int, seconds: float
) -> dict[str, Any]:
    """What a trainer of the daemon's host keeps when the gate of a remote one is killed, in turn with quiet times.

    Each round is a quiet time, one that begins with kill -9 of the gate, and one in which the remote trainer returns.
    """
    reading_s = str((4 * rounds + 1) * seconds + STOP_S)
    local = link.start_role(link.near, "--read", f"ipc://{folder}/s", str(folder), reading_s)
    remote = link.start_role(link.far, "--read", f"tcp://{NEAR}:{PORT}", str(folder), reading_s)
    time.sleep(STOP_S / 2)  # both read
    spans = []
    for _ in range(rounds):
        marks = [_take_mark(daemon.pid, local.pid)]
        for is_killed in (False, True):
            if is_killed and (gate := _find_gate(daemon.pid)) is not None:
                os.kill(gate, signal.SIGKILL)
            time.sleep(seconds)
            marks.append(_take_mark(daemon.pid, local.pid))
        spans.append(marks)
        while _find_gate(daemon.pid) is None:
            time.sleep(0.1)  # after each death the daemon waits longer
        time.sleep(seconds)  # the remote trainer comes back
    near, far = _finish(local), _finish(remote)
    arrived = near.pop("began_s") + np.array(near.pop("arrived"))
    far.pop("arrived")
    rates, costs = [], []
    for begin, killed, end in spans:
        counts = [
            int(((arrived > soon.clock_s) & (arrived <= late.clock_s)).sum())
            for soon, late in ((begin, killed), (killed, end))
        ]
        rates.append(counts[1] / (end.clock_s - killed.clock_s) / (counts[0] / (killed.clock_s - begin.clock_s)))
        spent = (killed.processor_s - begin.processor_s, end.processor_s - killed.processor_s)
        costs.append(counts[1] / spent[1] / (counts[0] / spent[0]))
    return {
        "local_by_clock": round(statistics.median(rates), 3),
        "local_by_processor_time": round(statistics.median(costs), 3),
        "rounds_by_clock": [round(each, 3) for each in rates],
        "rounds_by_processor_time": [round(each, 3) for each in costs],
        "local": near,
        "remote": far,
    }


def _find_gate(daemon: int) -> int | None:
    return next((pid for pid in _list_children(daemon) if b"\0network\0" in _read_command(pid)), None)


def _take_mark(daemon: int, trainer: int) -> Mark:
    pids = [daemon, trainer, *(pid for pid in _list_children(daemon) if b"\0streamd.worker\0" in _read_command(pid))]
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return Mark(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"))


def _list_children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _read_command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _finish(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    said, _ = process.communicate()
    read: dict[str, Any] = json.loads(said.splitlines()[-1])
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["all", *KINDS])
    parser.add_argument("--seconds", type=float, help="of each part; default: 20, and 300 with loss")
    parser.add_argument("--rounds", type=int, help="default: 5, and 9 of kill")
    parser.add_argument("--mbit", type=float, default=1000.0)
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--results", type=Path, default=RESULTS / "remote.json")
    chosen = parser.parse_args()
    kinds = KINDS if chosen.what == "all" else (chosen.what,)
    measured = {kind: measure(kind, chosen) for kind in kinds}
    if chosen.what == "all":
        finish(build_report(run.machine(), measured, chosen.seconds or LOSSY_S), chosen.results)


def measure(kind: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """Makes a link and a daemon, and measures one kind of thing; prints it as JSON."""
    loss = 5.0 if kind == "loss" else 0.0
    seconds = chosen.seconds or (LOSSY_S if kind == "loss" else 20.0)
    rounds = chosen.rounds or (9 if kind == "kill" else 5)
    mbit, size = (10.0, SLOW_SIZE) if kind == "slow" else (chosen.mbit, SIZE)
    with tempfile.TemporaryDirectory(prefix="sd") as name:
        folder = Path(name)
        with (
            Link(folder, bits_per_s=mbit * 1e6, delay_ms=chosen.rtt_ms / 2, loss=loss) as link,
            run_daemon(link, folder, size) as daemon,
        ):
            match kind:
                case "rate":
                    result = measure_rate(link, folder, rounds, seconds)
                case "loss":
                    result = measure_loss(link, folder, seconds)
                case "slow":
                    result = measure_slow(link, folder)
                case "cut":
                    result = measure_cut(link, folder, 45.0)
                case _:
                    result = measure_kill(link, folder, daemon, rounds, seconds)
            print((folder / "log").read_text(), file=sys.stderr)
    print(json.dumps({"what": kind, **result}), flush=True)
    return result


if __name__ == "__main__":
    if sys.argv[1] == "--read":
        print(json.dumps(read_stream(sys.argv[2], sys.argv[3], float(sys.argv[4]))))
    elif sys.argv[1] == "--send":
        send_plainly(sys.argv[2], float(sys.argv[4]))
    elif sys.argv[1] == "--receive":
        print(json.dumps(receive_plainly(sys.argv[2], float(sys.argv[4]))))
    else:
        main()
