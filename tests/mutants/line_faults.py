"""One-line faults of the core. Each is put into a copy of the package, where the checks of the core must find it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """`old`, a line of `file` as it stands but for its indentation, becomes `new`.

    `tests` selects the tests that must find it, if it is none of the core's.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str = ""


FAULTS: Final = (
    # --- slots
    Fault(
        "a slot is free while a trainer still holds its batch",
        "scheduler/scheduler.py",
        "if entry.lease_count or not entry.is_whole:",
        "if not entry.is_whole:",
    ),
    Fault(
        "a batch that several hold is free when the first lets go",
        "scheduler/slot_pool.py",
        "entry.lease_count -= 1",
        "entry.lease_count = 0",
    ),
    Fault(
        "slots of a trainer that died are written again",
        "scheduler/scheduler.py",
        "lent.may_stay_mapped = True",
        "lent.may_stay_mapped = False",
    ),
    Fault(
        "a slot that a forked child may see is written again",
        "scheduler/scheduler.py",
        "entry.may_stay_mapped = entry.may_be_read = True",
        "entry.may_be_read = True",
    ),
    Fault(
        "a slot is written again though its production failed half-way",
        "scheduler/scheduler.py",
        "entry.may_stay_mapped = True",
        "entry.may_stay_mapped = False",
    ),
    Fault(
        "what never may be written again goes back to the free slots",
        "scheduler/slot_pool.py",
        "if entry.may_stay_mapped:",
        "if entry.may_stay_mapped and not entry.is_whole:",
    ),
    Fault(
        "memory has room for one slot more than it has",
        "scheduler/slot_pool.py",
        "if self.used_bytes + slot_bytes <= self.memory_bytes and self._slot_count < self.most_slots:",
        "if self.used_bytes <= self.memory_bytes and self._slot_count < self.most_slots:",
    ),
    Fault(
        "the memory of slots that are over is not accounted as free",
        "scheduler/slot_pool.py",
        "self.used_bytes -= slot_bytes",
        "self.used_bytes -= 0",
    ),
    Fault(
        "a batch that gave way is still counted on",
        "scheduler/slot_pool.py",
        "self.evicted_keys.append(least)",
        "self.evicted_keys[:] = []",
    ),
    Fault(
        "the production of a stream that changed is sent as the new one's",
        "scheduler/scheduler.py",
        "del self._pool.entries[entry.key]",
        "del entry",
    ),
    # --- credit and leases
    Fault(
        "credit is added instead of set",
        "scheduler/scheduler.py",
        "session.upto = upto",
        "session.upto += upto",
    ),
    Fault(
        "a session may lease more than its credit",
        "scheduler/session.py",
        "return min(self.upto - self.sent, self.credit - self.held_count)",
        "return self.upto - self.sent",
    ),
    Fault(
        "what a trainer holds over a seek does not count within its credit",
        "scheduler/session.py",
        "return len(self.leases) + self.count_of_earlier_leases",
        "return len(self.leases)",
    ),
    Fault(
        "a session that ends takes what its trainer holds off the books",
        "scheduler/scheduler.py",
        "over = ended.leases.keys() - set(kept)",
        "over = ended.leases.keys()",
    ),
    Fault(
        "a client that loses its connection says that it holds nothing",
        "client/handoff.py",
        "return dict(self._held), self._forked.union(self._retired)",
        "return {}, set()",
    ),
    Fault(
        "the first of the releases told together is forgotten",
        "scheduler/scheduler.py",
        "for number in event.numbers:",
        "for number in event.numbers[1:]:",
    ),
    Fault(
        "the credit that a client grants does not grow with what it released",
        "client/session.py",
        "upto = max(self._told_upto, self._released_total + self._credit)",
        "upto = max(self._told_upto, self._credit)",
    ),
    Fault(
        "releases of the session before are told in the new one",
        "client/session.py",
        "self._released, self._retired, self._released_total = [], [], 0",
        "self._released_total = 0",
    ),
    Fault(
        "whoever waits for company waits on when it is there",
        "scheduler/scheduler.py",
        "if 0 < waiting.gathering_count <= len(there):",
        "if 0 < waiting.gathering_count < len(there):",
    ),
    Fault(
        "a draining daemon produces on",
        "scheduler/scheduler.py",
        "while not self._is_draining and not self._workload.is_full:",
        "while not self._workload.is_full:",
    ),
    # --- steps
    Fault(
        "a batch is sent twice",
        "scheduler/session.py",
        "self.position = StepPosition(now.epoch, now.base, now.step + 1, now.steps)",
        "self.position = StepPosition(now.epoch, now.base, now.step + (number != 3), now.steps)",
    ),
    Fault(
        "a rank's base is forgotten after its first step",
        "scheduler/session.py",
        "self.position = StepPosition(now.epoch, now.base, now.step + 1, now.steps)",
        "self.position = StepPosition(now.epoch, 0, now.step + 1, now.steps)",
    ),
    Fault(
        "the base of an epoch is taken over into the next",
        "core/spec.py",
        "return StepPosition(step.epoch + 1, 0, 0, self.steps_per_epoch)",
        "return StepPosition(step.epoch + 1, step.base, 0, self.steps_per_epoch)",
    ),
    Fault(
        "an epoch's last batch is dropped",
        "core/spec.py",
        "return self.step >= self.steps",
        "return self.step >= self.steps - (self.steps > 1)",
    ),
    Fault(
        "ranks that shall be padded lose their last step",
        "core/spec.py",
        'return -(-left // world) if uneven == "pad" else left // world',
        "return left // world",
    ),
    Fault(
        "ranks that shall drop their last step are padded",
        "core/spec.py",
        'return -(-left // world) if uneven == "pad" else left // world',
        "return -(-left // world)",
    ),
    # --- accounts
    Fault(
        "parts of a history that different ranks walked are told as one",
        "scheduler/session.py",
        "if last is not None and (last.rank, last.world, last.next_base_index) == (rank, world, base):",
        "if last is not None and last.next_base_index == base:",
    ),
    Fault(
        "the history before this session is forgotten",
        "scheduler/session.py",
        "return (*history, segment)",
        "return (segment,)",
    ),
    Fault(
        "the history of an epoch is taken over into the next",
        "scheduler/session.py",
        "self.history, self.first_base = (), 0",
        "self.first_base = 0",
    ),
    Fault(
        "the digest of what was taken leaves the place out",
        "core/receipt.py",
        "self._waiting.append((index, ids, marks))",
        "self._waiting.append((0, ids, marks))",
    ),
    Fault(
        "the rank is left out of the steps behind a cursor",
        "core/sampler.py",
        "firsts = [part.base + part.rank for part in segments]",
        "firsts = [part.base for part in segments]",
    ),
    # --- the trainer's side
    Fault(
        "frames of an older boot or session are accepted",
        "client/session.py",
        'if self.state != "active" or (header.boot, header.session) != (self._header.boot, self._header.session):',
        'if self.state != "active":',
    ),
    Fault(
        "a batch is accepted whatever its number and place",
        "client/session.py",
        "if header.number != self._expected or (message.epoch, message.index) != next(self._keys, None):",
        "if header.number < 0:",
    ),
    Fault(
        "the cursor moves before the loop has taken the batch",
        "client/handoff.py",
        "if wait_s and not self._received:",
        "self._cursor = after\n        if wait_s and not self._received:",
    ),
    Fault(
        "the accounts of client and daemon are not compared when frames may have been lost",
        "client/session.py",
        "if (pong.upto, pong.released) == asked and (pong.sent, pong.receipts) == (self._expected, self._receipts):",
        "if asked is not None:",
    ),
    Fault(
        "what a forked child sees is not told",
        "client/handoff.py",
        "retired = [number for number in numbers if number in self._forked]",
        "retired: list[int] = []",
    ),
    # --- shares of the memory
    Fault(
        "credit beyond first batches may take all memory",
        "scheduler/memory_shares.py",
        "return (room // KEPT_SHARE + self._count_first_batches(KEPT_SESSIONS)).at_most(room // 2)",
        "return room - room",
    ),
    Fault(
        "a user may take all that others leave",
        "scheduler/memory_shares.py",
        "return left - (left // USER_KEPT_SHARE).at_least(kept)",
        "return left",
    ),
)

# Found by the contract of passes and by the tests of ranks, which read real streams.
PASS_FAULTS: Final = (
    Fault(
        "an epoch is over only when a batch more is asked for",
        "client/stream.py",
        "return bool(self._tally.cursor.history) and not self.steps_left and not self._is_past_last_epoch()",
        "return False",
        "epoch_after_the_other and exactly",
    ),
    Fault(
        "an evaluation goes on where the one before broke off",
        "client/stream.py",
        "if self._last_token is not self._placed_token:",
        "if False:",
        "same_samples_each_time and sanity",
    ),
    Fault(
        "an evaluation begins anew though a token said where",
        "client/stream.py",
        "if self._last_token is not self._placed_token:",
        "if True:",
        "goes_on_there and within",
    ),
    Fault(
        "passes that evaluate are not counted",
        "client/stream.py",
        "self._whole_passes += 1",
        "self._whole_passes += 0",
        "epochs_of_a_subscription",
    ),
    Fault(
        "a loop that trains goes on behind an evaluation",
        "client/stream.py",
        "if one.number != self._passes_anew or (one.is_anew and one is not self._present_pass):",
        "if one.is_anew and one is not self._present_pass:",
        "evaluation_takes_the_stream",
    ),
    Fault(
        "a batch of which no tensor was made counts as taken",
        "client/stream.py",
        "return batch if one.convert is None else one.convert(batch)",
        "made, batch = batch, None; return made if one.convert is None else one.convert(made)",
        "ctrl_c_at_any_moment",
    ),
    Fault(
        "a thread waits for its batch outside of the lock",
        "client/stream.py",
        "batch = self._take_trainer_batch()",
        "self._lock.release(); batch = self._take_trainer_batch(); self._lock.acquire()",
        "threads_share",
    ),
    Fault(
        "the state of a loader is that of its epoch's end",
        "frameworks/torch/__init__.py",
        'self.stream.seek(state["streamd"])',
        'self.stream.seek(state["streamd"], after="epoch")',
        "loaders_state",
    ),
    Fault(
        "set_epoch moves nothing",
        "frameworks/torch/__init__.py",
        "self.stream.advance_to_epoch(wanted)",
        "wanted += 0",
        "set_epoch_moves",
    ),
    Fault(
        "the environment wins over a library that was initialized",
        "client/ranks.py",
        "found = [each for each in found if each[2] > 1]",
        "found = [each for each in found if each[2] > 99]",
        "initialized_for_several",
    ),
)
