"""Plans how to resume a training that was saved with other steps or another learning rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.core.text import format_count

LearningRate = float | str | None  # a number, the description of a schedule, or None without an optimizer's rate


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """The steps in which `fit` takes a stream: `rows` rows a step for each of `world` ranks, `steps` steps an epoch.

    `whole`: its epochs are the stream's epochs, and not a fixed number of steps.
    """

    rows: int
    world: int
    steps: int
    whole: bool

    @property
    def step_samples(self) -> int:
        """The samples of a step, over all ranks."""
        return self.rows * self.world

    def __str__(self) -> str:
        ranks = "" if self.world == 1 else f" for each of {self.world} ranks"
        return f"batches of {self.rows}{ranks}"


@dataclass(frozen=True, slots=True)
class InterruptedEpoch:
    """An epoch of `fit` that was interrupted after `done` of its `length` steps, which have the size of `geometry`.

    `own`: it was an epoch of the stream, or the rest of one, and not a fixed number of steps.
    """

    geometry: StepGeometry
    length: int
    done: int
    own: bool


def count_remaining_steps(epoch: InterruptedEpoch, now: StepGeometry, left: int) -> int:
    """Returns how many of today's steps the rest of an interrupted epoch takes.

    `left` is the number of steps left in the stream's present epoch.
    """
    if epoch.own:
        return left
    samples = (epoch.length - epoch.done) * epoch.geometry.step_samples
    return -(-samples // now.step_samples)


def describe_step_change(then: StepGeometry, now: StepGeometry, rest: int | None, left: int) -> str | None:
    """Describes how steps or epochs differ from the saved run's; None if they do not.

    rest: the steps left of the interrupted epoch; None if no epoch was interrupted.
    left: the steps left of the stream's present epoch.
    """
    resized = (then.rows, then.world) != (now.rows, now.world)
    recounted = then.steps != now.steps and not (then.whole and now.whole)
    parts = []
    if resized:
        parts.append(f"the run was saved with {then}, and continues with {now}")
    if recounted:
        first = (left - (rest or 0)) % now.steps if now.whole else 0
        shorter = (
            f", but the first such epoch has only the {first} that are left of the stream's epoch" if first else ""
        )
        parts.append(
            f"an epoch had {_format_steps(then.steps)}, and from here on has the {now.steps} of this program{shorter}"
        )
    if parts and rest:
        parts.append(f"before that, the rest of the interrupted epoch takes {_format_steps(rest)}")
    elif parts and rest == 0:
        parts.append(
            "what is left of the interrupted epoch is less than one step, so that epoch is over, and it is not "
            "validated"
        )
    return "; ".join(parts) or None


def _format_steps(count: int) -> str:
    return format_count(count, "step")


def describe_learning_rate_change(begun: LearningRate, kept: float | None, given: LearningRate) -> str | None:
    """Describes a program's learning rate that differs from the one with which the run began; None if it does not.

    begun: the learning rate with which the run began.
    kept: the number in the saved state, None for a schedule.
    given: the learning rate of the present program.
    """
    if given in (begun, kept):
        return None
    if kept is None:
        return (
            "the learning rate schedule differs from the saved one: this program's schedule is used, "
            f"{_format_learning_rate(given)}"
        )
    return (
        f"the learning rate is {kept:.6g}, as it was saved; this program's {_format_learning_rate(given)} is ignored: "
        "set model.optimizer.learning_rate in a callback, or choose another folder to start a new training run with "
        "it"
    )


def _format_learning_rate(rate: LearningRate) -> str:
    return f"{rate:.6g}" if isinstance(rate, float) else str(rate)
