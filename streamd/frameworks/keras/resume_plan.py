"""How a training goes on that was saved in steps of another size, and what counts where a program is another. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from streamd.core.text import format_count

LearningRate = float | str | None  # a number, what a schedule is made of, or none at all


@dataclass(frozen=True, slots=True)
class StepGeometry:
    """How `fit` takes a stream: `rows` a step by each of `world` ranks, `steps` an epoch.

    `whole`: its epochs are those of the stream, and not so many steps of them.
    """

    rows: int
    world: int
    steps: int
    whole: bool

    @property
    def step_samples(self) -> int:
        """Samples of a step of all ranks together."""
        return self.rows * self.world

    def __str__(self) -> str:
        ranks = "" if self.world == 1 else f" for each of {self.world} ranks"
        return f"batches of {self.rows}{ranks}"


@dataclass(frozen=True, slots=True)
class InterruptedEpoch:
    """An epoch of `fit` that was left: `done` of its `length` steps, in those of `geometry`.

    `own`: it was one of the stream's, or the rest of one, and not so many steps of them.
    """

    geometry: StepGeometry
    length: int
    done: int
    own: bool


def count_remaining_steps(epoch: InterruptedEpoch, now: StepGeometry, left: int) -> int:
    """The steps that the rest of an epoch takes now. `left`: how many the rest of the stream's present epoch takes."""
    if epoch.own:
        return left
    samples = (epoch.length - epoch.done) * epoch.geometry.step_samples
    return -(-samples // now.step_samples)


def describe_step_change(then: StepGeometry, now: StepGeometry, rest: int | None, left: int) -> str | None:
    """What to say where steps or epochs are others than they were; None where they are not.

    `rest`: steps that are left of an epoch which was interrupted; None where none was. `left`: those of the stream's.
    """
    resized = (then.rows, then.world) != (now.rows, now.world)
    recounted = then.steps != now.steps and not (then.whole and now.whole)
    parts = []
    if resized:
        parts.append(f"it was saved with {then}, and goes on with {now}")
    if recounted:
        first = (left - (rest or 0)) % now.steps if now.whole else 0
        shorter = f", but the first of them has the {first} that are left of the stream's" if first else ""
        parts.append(
            f"an epoch had {_format_steps(then.steps)}, and has the {now.steps} of this program from here on{shorter}"
        )
    if parts and rest:
        parts.append(f"before that, the rest of the epoch that was interrupted takes {_format_steps(rest)}")
    elif parts and rest == 0:
        parts.append("what is left of the epoch that was interrupted makes no step, so it is over, and not validated")
    return "; ".join(parts) or None


def _format_steps(count: int) -> str:
    return format_count(count, "step")


def describe_learning_rate_change(begun: LearningRate, kept: float | None, given: LearningRate) -> str | None:
    """What to say where a program gives another learning rate than the run was begun with; None where it does not.

    `kept` is the number that the state holds, where there is one.
    """
    if given in (begun, kept):
        return None
    if kept is None:
        return (
            "the learning rate's schedule is another one than was saved: that of this program counts, "
            f"{_format_learning_rate(given)}"
        )
    return (
        f"the learning rate is {kept:.6g}, as it was saved; the {_format_learning_rate(given)} of this program "
        "does not count: set model.optimizer.learning_rate in a callback, or name another folder to begin anew with it"
    )


def _format_learning_rate(rate: LearningRate) -> str:
    return f"{rate:.6g}" if isinstance(rate, float) else str(rate)
