"""`streamd demo`: a data set of roads, a daemon, a Keras trainer in its own process, a kill -9, and the receipts.

Every part is started by the command that a user would type.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Self, TextIO

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from streamd.client import connect
from streamd.core.host import hold_temporary_folder
from streamd.core.text import format_count
from streamd.errors import ConfigError, StreamdError
from streamd.frameworks.keras import load_keras

# --- roads: pictures with the steering angle that each asks for, a driving set that needs no download
#
# A camera looks over flat ground at a road whose centre lies at x(z) = offset + heading * z + curvature * z^2 metres
# to the right, z metres ahead. Each image row below the horizon sees one depth z, so everything on the ground is drawn
# by comparing a pixel's distance from the centre line, in metres, with widths.
#
# While drawing, a picture is float32 (rows, columns, 3) in 0..1. Angles are in [-1, 1], positive to the right.

Rng = np.random.Generator
Pixels = npt.NDArray[np.uint8]
Field = npt.NDArray[np.float32]

IMAGE_SIDE: Final = 128  # pixels, both ways
JPEG_QUALITY: Final = 90
VALIDATION_EVERY: Final = 8  # one image in so many is for validation
FOCAL_PX: Final = 110.0
CAMERA_HEIGHT_M: Final = 3.2  # a lorry's cab: low enough for perspective, high enough to see both verges

_SKIES: Final = np.array(  # the colour of the zenith, and of the horizon
    [
        [(0.24, 0.46, 0.80), (0.76, 0.86, 0.94)],
        [(0.42, 0.54, 0.76), (0.98, 0.84, 0.70)],
        [(0.60, 0.64, 0.68), (0.80, 0.82, 0.84)],
        [(0.20, 0.22, 0.42), (0.95, 0.56, 0.38)],
    ]
)
_VERGES: Final = np.array(  # grass, steppe, sand, snow
    [(0.34, 0.48, 0.20), (0.66, 0.59, 0.34), (0.82, 0.68, 0.46), (0.90, 0.92, 0.96)]
)
_LINE_COLOURS: Final = np.array([(0.92, 0.92, 0.90), (0.90, 0.70, 0.20)])


@dataclass(frozen=True, slots=True)
class RoadBend:
    """Where the road goes, seen from the camera: metres, radians, 1/metres; positive to the right."""

    offset_m: float
    heading: float
    curvature: float

    @property
    def steering_angle(self) -> float:
        """The steering that follows the road: mostly its curvature, a little the way back to its middle."""
        return max(-1.0, min(1.0, 100 * self.curvature + 0.1 * self.offset_m + 1.5 * self.heading))


@dataclass(frozen=True, slots=True)
class GroundView:
    """The G rows below the horizon, as the camera sees them.

    `depth_m` and `pixel_m` (G, 1) are the depth and the width of a pixel there; `across_m` (G, 128) is the distance
    from the road's centre.
    """

    depth_m: Field
    pixel_m: Field
    across_m: Field


def draw_road(rng: Rng) -> tuple[Pixels, float]:
    """Draws one picture, uint8 (128, 128, 3) RGB, and returns its steering angle too; both depend on `rng` alone."""
    curvature = 0.0092 * (2 * rng.beta(2.0, 2.0) - 1)  # bounded, and so spread that the angle's deviation is about 0.4
    bend = RoadBend(offset_m=rng.normal(0, 0.4), heading=rng.normal(0, 0.03), curvature=curvature)
    horizon = int(IMAGE_SIDE * rng.uniform(0.35, 0.45))

    canvas = np.empty((IMAGE_SIDE, IMAGE_SIDE, 3), dtype=np.float32)
    zenith, haze = rng.choice(_SKIES)
    canvas[:horizon] = np.linspace(zenith, haze, horizon)[:, None]
    canvas[horizon:] = rng.choice(_VERGES)
    # Paints the road, and the lines on it, onto the rows below the horizon (G, 128, 3).
    surface = canvas[horizon:]
    ground = project_ground(bend, horizon)
    half_width_m = rng.uniform(2.4, 3.8)
    _blend_colour(surface, np.full(3, rng.uniform(0.26, 0.52)), compute_strip_coverage(ground, 0, half_width_m))
    half_line_m = rng.uniform(0.07, 0.13)
    middle = compute_strip_coverage(ground, 0, half_line_m)
    if rng.binomial(1, 0.6):
        middle *= (ground.depth_m + rng.uniform(0, 10)) % 8 < rng.uniform(2.5, 5)  # dashes, every eight metres
    _blend_colour(surface, rng.choice(_LINE_COLOURS), middle)
    if rng.binomial(1, 0.75):
        for edge_m in (0.3 - half_width_m, half_width_m - 0.3):
            _blend_colour(surface, _LINE_COLOURS[0], compute_strip_coverage(ground, edge_m, half_line_m))

    canvas *= rng.uniform(0.5, 1.1)  # the time of day
    canvas += rng.normal(0, 0.03, canvas.shape)
    return np.clip(canvas * 255, 0, 255).astype(np.uint8), bend.steering_angle


def project_ground(bend: RoadBend, horizon: int) -> GroundView:
    """Computes what the camera sees of the ground in each row below the row `horizon`."""
    below_px = np.arange(IMAGE_SIDE - horizon, dtype=np.float32)[:, None] + 0.5
    depth_m = FOCAL_PX * CAMERA_HEIGHT_M / below_px
    pixel_m = depth_m / FOCAL_PX
    centre_m = bend.offset_m + bend.heading * depth_m + bend.curvature * depth_m**2
    columns = np.arange(IMAGE_SIDE, dtype=np.float32) + 0.5
    return GroundView(depth_m, pixel_m, (columns - IMAGE_SIDE / 2) * pixel_m - centre_m)


def compute_strip_coverage(ground: GroundView, middle_m: float, half_m: float) -> Field:
    """Computes how much of each pixel (G, 128) a strip along the road covers, in 0..1."""
    beside, reach = ground.across_m - middle_m, ground.pixel_m / 2
    inside = np.minimum(beside + reach, half_m) - np.maximum(beside - reach, -half_m)
    return np.clip(inside / ground.pixel_m, 0, 1)


def _blend_colour(surface: Field, colour: npt.NDArray[np.float64], cover: Field) -> None:
    """Lays `colour` (3,) over `surface` (rows, columns, 3) in place; `cover` (rows, columns) is in 0..1."""
    surface += (colour - surface) * cover[:, :, None]


def write_driving_set(folder: Path, images: int, seed: int, on_image: Callable[[int], None]) -> Path:
    """Draws `images` pictures into `folder`/images, lists them in a table, and returns the table's path.

    Its columns are image (relative to `folder`), angle and split: `validation` for every eighth, else `train`. Image
    number i depends on (`seed`, i) only. `on_image` is called after each image with the number of images so far.
    Raises ConfigError for a folder that cannot be written.
    """
    listing = folder / "all.csv"
    try:
        (folder / "images").mkdir(parents=True, exist_ok=True)
        with listing.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("image", "angle", "split"))
            for number in range(images):
                pixels, angle = draw_road(np.random.default_rng([seed, number]))
                name = f"images/{number:05d}.jpg"
                Image.fromarray(pixels).save(folder / name, quality=JPEG_QUALITY)
                split = "train" if (number + 1) % VALIDATION_EVERY else "validation"
                table.writerow((name, f"{angle:.5f}", split))
                on_image(number + 1)
    except OSError as error:
        raise ConfigError(f"the driving set cannot be written to {folder}: {error}") from error
    return listing


# --- the demo: a daemon, a trainer, a kill -9, and the account

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


FULL_DEMO: Final = (4096, 10)  # images and epochs
QUICK_DEMO: Final = (1600, 5)


def run_demo(images: int, epochs: int, output: Path) -> None:
    """Runs the whole demonstration; leaves the model, the chart and the receipts in `output`, and nothing else.

    Raises StreamdError when a part fails, samples were lost or repeated, or the model has not learned.
    """
    console = Console(highlight=False)
    output.mkdir(parents=True, exist_ok=True)
    with hold_temporary_folder("streamd-demo-") as place:
        console.rule("Roads")
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task(f"drawing {images} road images", total=images)
            write_driving_set(place, images, _SEED, lambda done: progress.update(bar, completed=done))
        console.print(f"   {images} images of 128x128 with a steering angle, in {place}")
        with _DemoDaemon(place, console) as daemon:
            with connect(daemon.endpoint, timeout=_READY_TIMEOUT_S) as client:
                streams = client.streams()
            listed = (f"{name} ({format_count(spec.samples, 'image')})" for name, spec in streams.items())
            console.print(f"   streams: {', '.join(listed)}")
            console.rule("A trainer, another process")
            account = output / "receipts.json"
            what = ["--stream", "train", "--validation", "validation"]
            options = [*what, "--epochs", str(epochs), "--seed", str(_SEED)]
            where = ["--endpoint", daemon.endpoint, "--save", str(output / "model.keras"), "--receipts", str(account)]
            console.print(f"   $ streamd-train {' '.join(options)} --save {output / 'model.keras'}")
            with _run_process("streamd.cli.train.command", *options, *where) as trainer:
                daemon.kill_during_training(trainer)
            if trainer.returncode:
                raise StreamdError(f"the trainer failed with exit status {trainer.returncode}; its message is above")
            if not daemon.kills:
                raise StreamdError(
                    "the trainer finished before the daemon could be killed, so the demo has shown nothing"
                )
            # How many samples were lost and repeated over all epochs.
            console.rule("The account")
            receipts: dict[str, list[dict[str, Any]]] = {}
            for receipt in json.loads(account.read_text()):
                receipts.setdefault(receipt["stream"], []).append(receipt)
            table = Table("stream", "epochs", "samples", "lost", "repeated", "digests")
            wrong = False
            for name, of_stream in receipts.items():
                whole = [epoch for epoch in of_stream if epoch["complete"]]
                samples, lost, repeated = (
                    sum(epoch[key] for epoch in whole) for key in ("samples", "missed", "repeated")
                )
                agree = all(epoch["ok"] for epoch in whole)
                digests = "equal" if agree else "DIFFER"
                table.add_row(name, str(len(whole)), f"{samples:,}", str(lost), str(repeated), digests)
                wrong = wrong or bool(lost or repeated or not agree)
            console.print(table)
            if wrong:
                raise StreamdError("the account does not add up: see the table above")
            result = "[bold green]lost 0, repeated 0[/bold green]"
            console.print(f"   the daemon was killed {daemon.kills} time with kill -9: {result}")
            console.rule("What it learned")
            # Another process predicts the validation stream and draws the chart, since this takes TensorFlow.
            judged = "streamd.cli.demo", daemon.endpoint, str(output / "model.keras"), str(output / "predictions.png")
            with _run_process(*judged, stdout=subprocess.PIPE, process_group=0) as judge:
                assert judge.stdout is not None  # noqa: S101 - a pipe was asked for
                lines = judge.stdout.read().splitlines()
            if judge.returncode:
                raise StreamdError(
                    "the trained model is no better than predicting the mean, or could not be judged: see above"
                )
            for line in lines:
                console.print(f"   {line}")
    console.print(f"\n   [bold]{output / 'predictions.png'}[/bold] shows predictions against truth.")
    console.print(
        "   Next: `streamd init FOLDER` with your own images, `streamd serve`, `streamd-train` (docs/first-steps.md)."
    )


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
        def forward_log(log: IO[str]) -> None:
            for line in log:
                if "receipt.ok" not in line:  # one an epoch, which the table shows; the progress bar needs the space
                    self._console.print(f"   {line.rstrip()}", style="dim", markup=False, soft_wrap=True)
                if "stream=train session=" in line and f"epoch={_KILL_AFTER_EPOCH} " in line:
                    self._kill_due.set()

        self._console.print(f"   $ streamd serve --config {self._config.name}")
        serve = "streamd.cli.main", "serve", "--config", str(self._config)
        self._process, reader = _start_process(*serve, read_stderr=forward_log, env=self._environment)
        self._readers.append(reader)

    def kill_during_training(self, trainer: subprocess.Popen[str]) -> None:
        """Waits for the moment, kills the daemon with SIGKILL, and starts it again."""

        def wait_for_trainer() -> None:
            trainer.wait()
            self._kill_due.set()

        watch = threading.Thread(target=wait_for_trainer, name="demo-trainer")
        watch.start()
        self._kill_due.wait()
        if trainer.poll() is None:
            with connect(self.endpoint, timeout=_READY_TIMEOUT_S) as client:
                numbers = client.stats()["daemon"]
            sessions = format_count(int(numbers["sessions"]), "session")
            batches = format_count(int(numbers["slots"]), "batch", "batches")
            self._console.print(
                f"\n   [bold red]$ kill -9 {self._process.pid}[/bold red]   (the daemon; the trainer keeps reading, "
                f"{sessions}, {batches} in memory)"
            )
            self._process.kill()
            self._process.wait()
            self.kills += 1
            self._start_process()
        watch.join()


def _start_process(
    module: str, *arguments: str, read_stderr: Callable[[IO[str]], None], **options: Any
) -> tuple[subprocess.Popen[str], threading.Thread]:
    """Starts a module in a process that the kernel ends with the demo, and a thread that reads its stderr."""
    command = [sys.executable, "-m", "streamd.ipc.inherited_state", str(os.getpid()), module, *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", **options)
    reader = threading.Thread(target=read_stderr, args=(process.stderr,), name="demo-stderr", daemon=True)
    reader.start()
    return process, reader


@contextlib.contextmanager
def _run_process(module: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts a process, copies its stderr without TensorFlow's notes at its start, and ends it with the block."""
    copy = partial(copy_stderr_lines, target=sys.stderr)
    process, reader = _start_process(module, *arguments, read_stderr=copy, **options)
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


# --- the judge of the model, by one validation epoch: `python -m streamd.cli.demo ENDPOINT MODEL CHART`
#
# One picture shows what it has learned: predictions against truth, and six roads with both steering angles.


Angles = npt.NDArray[np.float64]  # (n,) in [-1, 1], positive to the right
Example = tuple[npt.NDArray[np.uint8], float, float]  # image uint8 (H, W, 3), truth, prediction

EXAMPLES: Final = 6  # two rows of three
_LEARNED_BELOW: Final = 0.7  # of the mean's error: what counts as having learned
_INCHES: Final = (12.0, 6.4)  # 1200 x 640 pixels
_ARROWS: Final = (("truth", "#26be60", 5, "left"), ("predicted", "#ff881c", 2, "right"))  # colour, width, side
_ARROW_LENGTH: Final = 0.45  # of the picture's height


def judge_model(endpoint: str, model_path: Path, chart: Path) -> str:
    """Draws the chart, and returns its caption.

    Raises StreamdError when the model does not clearly beat the mean.
    """
    model = load_keras().models.load_model(model_path)
    truths, predictions, examples = [], [], list[Example]()
    with connect(endpoint) as client, client.subscribe("validation", epochs=1) as stream:
        for batch in stream:
            truths.append(batch.labels["angle"])
            predictions.append(np.asarray(model.predict_on_batch(batch.copy().images)).reshape(-1))
            examples.append((batch.images[0].copy(), float(truths[-1][0]), float(predictions[-1][0])))
    truth, predicted = (np.concatenate(each, dtype=np.float64) for each in (truths, predictions))
    scores = compute_scores(truth, predicted)
    draw_chart(truth, predicted, examples, format_scores(scores), chart)
    if not scores.mae <= _LEARNED_BELOW * scores.mean_mae:  # also for NaN
        raise StreamdError(f"the model did not learn: {format_scores(scores)}")
    return format_scores(scores)


def main() -> None:
    endpoint, model, chart = sys.argv[1:]
    try:
        text = judge_model(endpoint, Path(model), Path(chart))
    except StreamdError as error:
        sys.stderr.write(f"streamd demo: {error}\n")
        raise SystemExit(error.exit_status) from None
    sys.stdout.write(f"{text}\n")


@dataclass(frozen=True, slots=True)
class PredictionScores:
    """How good predictions are; errors in the unit of the truth."""

    samples: int
    r2: float
    mae: float
    mean_mae: float  # of predicting the mean of the truth every time


def compute_scores(truth: Angles, predicted: Angles) -> PredictionScores:
    """Scores predictions (n,) against the truth (n,), whose values must not all be equal."""
    from_mean = truth - truth.mean()
    return PredictionScores(
        samples=truth.size,
        r2=1 - float(np.sum((truth - predicted) ** 2) / np.sum(from_mean**2)),
        mae=float(np.abs(truth - predicted).mean()),
        mean_mae=float(np.abs(from_mean).mean()),
    )


def format_scores(scores: PredictionScores) -> str:
    """Formats a line such as `R² 0.930 · MAE 0.071 · predicting the mean would give MAE 0.334 · 512 samples`."""
    return (
        f"R² {scores.r2:.3f}   ·   MAE {scores.mae:.3f}   ·   predicting the mean would give MAE {scores.mean_mae:.3f}"
        f"   ·   {scores.samples} samples"
    )


def draw_chart(truth: Angles, predicted: Angles, examples: Sequence[Example], caption: str, path: Path) -> None:
    """Writes a PNG of 1200 x 640 pixels: predictions against truth, a caption, and up to six of the `examples`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only the judge's process draws

    figure = Figure(figsize=_INCHES, dpi=100)
    figure.suptitle("Steering angle: predictions against truth", x=0.03, ha="left", fontsize=18)
    figure.text(0.03, 0.04, caption, fontsize=11)
    grid = figure.add_gridspec(2, 5, left=0.06, right=0.98, bottom=0.17, top=0.87)
    axes: Any = figure.add_subplot(grid[:, :2], xlabel="truth", ylabel="predicted", aspect="equal")
    axes.axline((0, 0), slope=1, color="grey", linewidth=1)
    # The more dots there are, the more transparent each one is, so that dense places show.
    axes.scatter(truth, predicted, s=14, alpha=min(0.75, max(0.15, math.sqrt(300 / truth.size))), linewidths=0)
    axes.grid(alpha=0.3)
    for place, example in enumerate(examples[:EXAMPLES]):
        # A picture with both angles as arrows, the prediction on top and thinner, so that equal ones both show.
        pixels, *angles = example
        height, width = pixels.shape[:2]
        foot, reach = (width / 2, 0.93 * height), _ARROW_LENGTH * height
        shown: Any = figure.add_subplot(grid[place // 3, 2 + place % 3])
        shown.imshow(pixels)
        shown.set_axis_off()
        for angle, (name, colour, line_width, side) in zip(angles, _ARROWS, strict=True):
            turn = math.radians(80) * angle
            tip = (foot[0] + reach * math.sin(turn), foot[1] - reach * math.cos(turn))
            shown.annotate("", tip, foot, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": line_width})
            shown.set_title(f"{name} {angle:+.2f}", fontsize=9, color=colour, loc=side)
    figure.savefig(path, format="png")


if __name__ == "__main__":
    main()
