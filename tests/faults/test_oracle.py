"""The judge of logs must find every fault: each log here is a correct one with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from account_log import Began, Ended, Record, Settled, Step, read_records
from logged import problems, running
from oracle import Truth, judge, standing_steps, union_problems
from scene import Scene, scene

Lines = list[Record]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One trainer's two epochs of 10 batches, killed and resumed in the first; and both ranks of a world of two."""
    with scene(tmp_path_factory.mktemp("d"), 20) as stage:
        alone = stage.trainer("alone", epochs=2, checkpoint_every=3, gated=True)
        ranks = [stage.trainer(f"rank-{rank}", rank=rank, world=2) for rank in range(2)]
        with running(alone, *ranks):
            alone.allow(5)
            alone.wait_for(5)
            alone.kill()
            alone.start().allow()
            for each in (alone, *ranks):
                each.finish()
        assert problems(stage.truth, alone, *ranks) == []
        yield stage


@pytest.fixture
def lines(stage: Scene) -> Lines:
    return [record for _, record in read_records(stage.place / "alone.log") if record is not None]


def told(truth: Truth, place: Path, lines: Lines, **walk: Any) -> str:
    """What the oracle says of these lines, checkpoints being where they were."""
    log = place / "doctored.log"
    log.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    return " | ".join(judge(truth, log, **{"epochs": 2, **walk}).problems)


def steps_of(lines: Lines) -> list[int]:
    return [place for place, each in enumerate(lines) if isinstance(each, Step)]


def change(lines: Lines, place: int, **facts: object) -> None:
    lines[place] = msgspec.structs.replace(lines[place], **facts)


@pytest.mark.long
def test_a_correct_log_has_no_problem_and_its_resumption_is_counted(stage: Scene) -> None:
    account = judge(stage.truth, stage.place / "alone.log", epochs=2)
    assert (account.steps, account.lives, account.again, account.epochs) == (20, 2, 2, 2)
    assert account.problems == []
    assert len(standing_steps(stage.place / "alone.log")) == 20


@pytest.mark.parametrize(
    ("last_indices", "says"),
    [
        pytest.param([7, 8, 9], "step 16 is batch (1, 7), where (1, 6) must come", id="one is lost"),
        pytest.param([6, 6, 7, 8, 9], "step 17 is batch (1, 6), where (1, 7) must come", id="one is repeated"),
        pytest.param([6, 7, 9, 8], "step 18 is batch (1, 9), where (1, 8) must come", id="two are exchanged"),
    ],
)
def test_the_judge_reports_a_wrong_sequence_of_batches(
    stage: Scene, lines: Lines, tmp_path: Path, last_indices: list[int], says: str
) -> None:
    first, *_, last = steps_of(lines)[-4:]
    lines[first : last + 1] = [lines[first + index - 6] for index in last_indices]
    assert says in told(stage.truth, tmp_path, lines)


def other_digest(text: str) -> str:
    return text[::-1]


DOCTORED: dict[str, Callable[[Step], dict[str, object]]] = {
    "other samples than": lambda step: {"ids": step.ids[::-1]},
    "other weights than": lambda step: {"weights": (0.0, *step.weights[1:])},
    "other labels than": lambda step: {"labels": other_digest(step.labels)},
    "other pixels than": lambda step: {"images": other_digest(step.images)},
    "are called bad and are not": lambda step: {"bad": ((0, step.ids[0], "substituted"),)},
}


@pytest.mark.parametrize("said", DOCTORED)
def test_the_judge_reports_a_batch_that_differs_from_the_files(
    stage: Scene, lines: Lines, tmp_path: Path, said: str
) -> None:
    place = steps_of(lines)[-4]
    step = lines[place]
    assert isinstance(step, Step)
    change(lines, place, **DOCTORED[said](step))
    assert said in told(stage.truth, tmp_path, lines)


def test_the_judge_reports_a_batch_sent_again_with_other_bytes(stage: Scene, lines: Lines, tmp_path: Path) -> None:
    undone = next(place for place, each in enumerate(lines) if isinstance(each, Step) and each.index == 4)
    change(lines, undone, images=other_digest(str(lines[undone].images)))  # type: ignore[union-attr]  # it is a step
    assert "batch (0, 4) was sent again with other bytes" in told(stage.truth, tmp_path, lines)


def test_the_judge_reports_a_resumption_that_misses_its_checkpoint(stage: Scene, lines: Lines, tmp_path: Path) -> None:
    again = [place for place, each in enumerate(lines) if isinstance(each, Began)][1]
    change(lines, again, position=0)
    assert "step 0 is batch (0, 3), where (0, 0) must come" in told(stage.truth, tmp_path, lines)
    change(lines, again, position=7)
    assert "resumed at byte 7, where no step that stands ends" in told(stage.truth, tmp_path, lines)


def test_the_judge_reports_an_incomplete_log(stage: Scene, lines: Lines, tmp_path: Path) -> None:
    assert isinstance(lines[-1], Ended)
    assert "does not end" in told(stage.truth, tmp_path, lines[:-1])
    assert "ends before (2, 0)" in told(stage.truth, tmp_path, lines, epochs=3)


def test_the_judge_reports_a_missing_or_wrong_receipt(stage: Scene, lines: Lines, tmp_path: Path) -> None:
    place = max(place for place, each in enumerate(lines) if isinstance(each, Settled))
    receipt = lines[place].receipt  # type: ignore[union-attr]  # it is a receipt
    assert "epoch 1 has no receipt" in told(stage.truth, tmp_path, lines[:place] + lines[place + 1 :])
    doctored: list[tuple[dict[str, Any], str]] = [
        ({"digest": other_digest(receipt.digest)}, "has digest"),
        ({"missed": 1}, "does not add up"),
        ({"ok": False}, "does not add up"),
        ({"dropped": 2}, "says 2 dropped, not 0"),
    ]
    for change_of, said in doctored:
        change(lines, place, receipt=replace(receipt, **change_of))
        assert said in told(stage.truth, tmp_path, lines)


def test_the_judge_reports_a_log_of_another_order(stage: Scene, lines: Lines, tmp_path: Path) -> None:
    change(lines, 0, order_id="other")
    assert "is of order other" in told(stage.truth, tmp_path, lines)


def test_a_torn_line_is_accepted_only_before_a_resumption(stage: Scene, tmp_path: Path) -> None:
    whole = (stage.place / "alone.log").read_bytes()
    again = whole.rindex(b'{"type":"began"')
    log = tmp_path / "doctored.log"
    log.write_bytes(whole[:again] + b'{"type":"st\n' + whole[again:])
    assert judge(stage.truth, log, epochs=2).problems == []
    log.write_bytes(whole[: whole.index(b"\n") + 1] + b'{"type":"st\n' + whole[whole.index(b"\n") + 1 :])
    assert "no kill behind it" in judge(stage.truth, log, epochs=2).problems[0]


def test_the_ranks_of_a_world_must_take_everything_once(stage: Scene) -> None:
    one, other = (stage.place / f"rank-{rank}.log" for rank in range(2))
    assert union_problems(stage.truth, [one, other], 1) == []
    batches, samples = union_problems(stage.truth, [one, one], 1)
    assert batches == "epoch 0: the ranks took 10 batches, 5 different ones"
    assert samples == "epoch 0: 20 samples, 10 of all left out, receipts say {0}"
