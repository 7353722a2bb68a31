"""`streamd demo`: a data set of roads, a daemon, a Keras trainer in its own process, a kill -9, and the receipts.

Every part is started by the command that a user would type.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self, TextIO

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from streamd.cli.demo.road import write_driving_set
from streamd.client import connect
from streamd.core.host import hold_temporary_folder
from streamd.core.text import format_count
from streamd.errors import StreamdError

_READY_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_KILL_AFTER_EPOCH: Final = 1  # the daemon dies after this epoch of training, in its validation or right after it
_SEED: Final = 7

# TensorFlow writes these lines before its log level takes effect. All other lines are shown, so that no real error is
# hidden.
_STARTUP_NOTE: Final = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|I\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] "  # a note, as of oneDNN and of the processor's instructions
    r"|To enable the following instructions: "  # the second line of such a note
    r"|E\d{4} .*failed call to cuInit: .*\(303\)$"  # there is no driver of a GPU
)

_CONFIG_TEMPLATE: Final = """\
listen: [{endpoint}]
memory: 256MiB
streams:
  train:
    source: {{kind: table, path: all.csv, image: image, where: {{split: train}}}}
    labels: {{angle: float}}
    image: {{size: [128, 128]}}
    batch_size: 32
    normalize: minus_one_one
  validation:
    like: train
    source: {{kind: table, path: all.csv, image: image, where: {{split: validation}}}}
    shuffle: none
"""


@dataclass(frozen=True, slots=True)
class DemoSize:
    """The size of a demonstration."""

    images: int
    epochs: int


FULL_DEMO: Final = DemoSize(images=4096, epochs=10)
QUICK_DEMO: Final = DemoSize(images=1600, epochs=5)


def run_demo(size: DemoSize, output: Path) -> None:
    """Runs the whole demonstration; leaves the model, the chart and the receipts in `output`, and nothing else.

    Raises StreamdError when a part fails, samples were lost or repeated, or the model has not learned.
    """
    console = Console(highlight=False)
    output.mkdir(parents=True, exist_ok=True)
    with hold_temporary_folder("streamd-demo-") as place:
        _draw_roads(console, place, size.images)
        with _DemoDaemon(place, console) as daemon:
            with connect(daemon.endpoint, timeout=_READY_TIMEOUT_S) as client:
                streams = client.streams()
            listed = (f"{name} ({format_count(spec.samples, 'image')})" for name, spec in streams.items())
            console.print(f"   streams: {', '.join(listed)}")
            receipts = _run_trainer(console, daemon, size.epochs, output)
            _print_receipt_table(console, receipts, daemon)
            console.rule("What it learned")
            for line in _run_judge_process(daemon.endpoint, output):
                console.print(f"   {line}")
    console.print(f"\n   [bold]{output / 'predictions.png'}[/bold] shows predictions against truth.")
    console.print(
        "   Next: `streamd init FOLDER` with your own images, `streamd serve`, `streamd-train` (docs/first-steps.md)."
    )


def _draw_roads(console: Console, folder: Path, images: int) -> None:
    console.rule("Roads")
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(f"drawing {images} road images", total=images)
        write_driving_set(folder, images, _SEED, lambda done: progress.update(bar, completed=done))
    console.print(f"   {images} images of 128x128 with a steering angle, in {folder}")


class _DemoDaemon:
    """Runs `streamd serve` in its own process, shows its log, and watches the log for the moment to kill it.

    One thread for each started process reads its log. `_kill_due` is set by that thread at the log line of the epoch,
    or by the thread that waits for the trainer, so that `kill_during_training` never waits for a trainer that has died.
    """

    def __init__(self, folder: Path, console: Console) -> None:
        self.endpoint = f"ipc://{folder}/streamd.sock"
        self.kills = 0
        self._config = folder / "config.yaml"
        self._config.write_text(_CONFIG_TEMPLATE.format(endpoint=self.endpoint))
        self._environment = {**os.environ, "STATE_DIRECTORY": str(folder / "state")}
        self._console = console
        self._process: subprocess.Popen[str]  # of the daemon that runs now; set by _start_process
        self._readers: list[threading.Thread] = []
        self._kill_due = threading.Event()

    def __enter__(self) -> Self:
        self._console.rule("The daemon")
        self._start_process()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for reader in self._readers:
            reader.join()

    def _start_process(self) -> None:
        command = [*_build_tied_command("streamd.cli.main"), "serve", "--config", str(self._config)]
        self._console.print(f"   $ streamd serve --config {self._config.name}")
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=self._environment)
        assert self._process.stderr is not None  # noqa: S101 - a pipe was asked for
        reader = threading.Thread(target=self._forward_daemon_log, args=(self._process.stderr,), name="demo-log")
        reader.start()
        self._readers.append(reader)

    def _forward_daemon_log(self, log: IO[str]) -> None:
        for line in log:
            if "receipt.ok" not in line:  # one an epoch, which the table shows; the progress bar needs the space
                self._console.print(f"   {line.rstrip()}", style="dim", markup=False, soft_wrap=True)
            if "stream=train session=" in line and f"epoch={_KILL_AFTER_EPOCH} " in line:
                self._kill_due.set()

    def kill_during_training(self, trainer: subprocess.Popen[str]) -> None:
        """Waits for the moment, kills the daemon with SIGKILL, and starts it again."""
        watch = threading.Thread(target=self._wait_for_trainer, args=(trainer,), name="demo-trainer")
        watch.start()
        self._kill_due.wait()
        if trainer.poll() is None:
            self._console.print(
                f"\n   [bold red]$ kill -9 {self._process.pid}[/bold red]   (the daemon; the trainer keeps reading, "
                f"{self._request_lease_summary()})"
            )
            self._process.kill()
            self._process.wait()
            self.kills += 1
            self._start_process()
        watch.join()

    def _wait_for_trainer(self, trainer: subprocess.Popen[str]) -> None:
        trainer.wait()
        self._kill_due.set()

    def _request_lease_summary(self) -> str:
        with connect(self.endpoint, timeout=_READY_TIMEOUT_S) as client:
            numbers = client.stats()["daemon"]
        return (
            f"{format_count(int(numbers['sessions']), 'session')}, "
            f"{format_count(int(numbers['slots']), 'batch', 'batches')} in memory"
        )


def _run_trainer(
    console: Console, daemon: _DemoDaemon, epochs: int, output: Path
) -> dict[str, list[dict[str, object]]]:
    """Runs `streamd-train` while the daemon is killed; returns the receipts by stream."""
    console.rule("A trainer, another process")
    account = output / "receipts.json"
    options = ["--stream", "train", "--validation", "validation", "--epochs", str(epochs), "--seed", str(_SEED)]
    where = ["--endpoint", daemon.endpoint, "--save", str(output / "model.keras"), "--receipts", str(account)]
    console.print(f"   $ streamd-train {' '.join(options)} --save {output / 'model.keras'}")
    command = [*_build_tied_command("streamd.cli.train.command"), *options, *where]
    with _run_process(command) as trainer:
        daemon.kill_during_training(trainer)
    if trainer.returncode:
        raise StreamdError(f"the trainer failed with exit status {trainer.returncode}; its message is above")
    if not daemon.kills:
        raise StreamdError("the trainer finished before the daemon could be killed, so the demo has shown nothing")
    receipts: dict[str, list[dict[str, object]]] = {}
    for receipt in json.loads(account.read_text()):
        receipts.setdefault(receipt["stream"], []).append(receipt)
    return receipts


def _build_tied_command(module: str) -> list[str]:
    """Returns a command that runs a module, and that the kernel ends with the demo."""
    return [sys.executable, "-m", "streamd.ipc.inherited_state", str(os.getpid()), module]


@contextlib.contextmanager
def _run_process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, copies its stderr without TensorFlow's notes at its start, and ends it with the block."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", **options)
    assert process.stderr is not None  # noqa: S101 - a pipe was asked for
    streams = process.stderr, sys.stderr
    reader = threading.Thread(target=copy_stderr_lines, args=streams, name="demo-errors", daemon=True)
    reader.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        reader.join()


def copy_stderr_lines(source: IO[str], target: TextIO) -> None:
    """Copies lines until the source ends, and leaves out the notes that TensorFlow writes at its start."""
    for line in source:
        if not _STARTUP_NOTE.match(line):
            target.write(line)
            target.flush()


def _print_receipt_table(console: Console, receipts: dict[str, list[dict[str, object]]], daemon: _DemoDaemon) -> None:
    """Prints how many samples were lost and repeated over all epochs. Raises StreamdError if there are any."""
    console.rule("The account")
    table = Table("stream", "epochs", "samples", "lost", "repeated", "digests")
    wrong = False
    for stream, epochs in receipts.items():
        whole = [epoch for epoch in epochs if epoch["complete"]]
        lost, repeated = (sum(int(str(epoch[name])) for epoch in whole) for name in ("missed", "repeated"))
        agree = all(epoch["ok"] for epoch in whole)
        samples = sum(int(str(epoch["samples"])) for epoch in whole)
        table.add_row(stream, str(len(whole)), f"{samples:,}", str(lost), str(repeated), "equal" if agree else "DIFFER")
        wrong = wrong or bool(lost or repeated or not agree)
    console.print(table)
    if wrong:
        raise StreamdError("the account does not add up: see the table above")
    console.print(
        f"   the daemon was killed {daemon.kills} time with kill -9: [bold green]lost 0, repeated 0[/bold green]"
    )


def _run_judge_process(endpoint: str, output: Path) -> list[str]:
    """Predicts the validation stream and draws the chart in another process, which imports TensorFlow.

    Returns the lines that the process printed.
    """
    files = [str(output / name) for name in ("model.keras", "predictions.png")]
    command = [*_build_tied_command("streamd.cli.demo.judge"), endpoint, *files]
    with _run_process(command, stdout=subprocess.PIPE, process_group=0) as judge:
        assert judge.stdout is not None  # noqa: S101 - a pipe was asked for
        lines = judge.stdout.read().splitlines()
    if judge.returncode:
        raise StreamdError("the trained model is no better than predicting the mean, or could not be judged: see above")
    return lines
