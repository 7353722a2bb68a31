"""Transforms in real workers: equal results, wrong results that stop the stream, new workers for new sources."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.local_engine import ANSWER_S, Rig, pixels, ready_engine
from support.opened_streams import Serve
from support.transform_programs import DRAWN, Write

from streamd.core.counters import ProcessStats
from streamd.daemon.engine import engine as local
from streamd.daemon.engine.engine import BatchEngine
from streamd.daemon.engine.worker_pool import hire_local_workers
from streamd.daemon.streams.served_stream import ServedStream
from streamd.dataset.transform_source import find_transform_source
from streamd.errors import ConfigError
from streamd.ipc.slots import SlotStore
from streamd.ipc.worker_messages import TransformFault, WorkerDied
from streamd.limits import ROW_DEADLINE_S


@pytest.fixture
def served(serve_images: Serve, program: Write) -> Serve:
    """Serves 24 images by the transform `f` that is written beside them; again, with another one."""
    plain = serve_images({"cat": 12, "dog": 12})

    def make(text: str, name: str = "augment") -> ServedStream:
        return replace(plain, transform=find_transform_source(f"{name}:f", program(name, text).parent))

    return make


DEADLINE_S = 5.0  # a busy host may take seconds to import anything
INVERT = "def f(image, labels, rng):\n    return 255 - image, labels"


@pytest.mark.long
async def test_every_worker_draws_the_same_for_a_sample(served: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one that is stopped may still be at its trial, after which nobody waits.
    monkeypatch.setattr("streamd.supervisor.worker_process.STOPPED_S", ROW_DEADLINE_S)
    stream = served(DRAWN.replace("draw", "f"))
    found: dict[int, set[bytes]] = {}
    async with ready_engine(stream, workers=2) as rig:
        first, second = rig.worker_pids
        for stopped, goes in ((first, second), (second, first)):
            os.kill(stopped, signal.SIGSTOP)
            os.kill(goes, signal.SIGCONT)
            rig.engine._pool._generations[0].workers.reverse()  # whoever goes is asked first
            rig.produce(3)
            production = await rig.filled()
            for sample_id, image in zip(production.delivered_ids.tolist(), rig.images(), strict=True):
                found.setdefault(sample_id, set()).add(image.tobytes())
        os.kill(second, signal.SIGCONT)
    assert [len(images) for images in found.values()] == [1] * 8


@pytest.mark.long
async def test_a_transform_that_returns_the_wrong_shape_stops_the_stream_and_no_sample_is_bad(served: Serve) -> None:
    stream = served("def f(image, labels, rng):\n    return image[: 32 - labels['label']], labels")
    async with ready_engine(stream) as rig:
        rig.produce()
        reason = await rig.failure()
        assert reason.startswith(
            "transform at augment.py:1: it returns an image of uint8 (31, 32, 3); it must return uint8 (32, 32, 3)"
        )
        assert "; the sample was dog/" in reason
        assert stream.quarantine.reasons == {}
        assert rig.engine.worker_death_count == 0


@pytest.mark.long
async def test_an_edited_transform_gets_new_workers_and_the_old_ones_finish_their_batch(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stopped worker is only slow here.
    monkeypatch.setattr("streamd.supervisor.worker_process.STOPPED_S", ROW_DEADLINE_S)
    old = served(INVERT)
    async with ready_engine(old) as rig:
        (before,) = rig.worker_pids
        os.kill(before, signal.SIGSTOP)
        rig.produce(slot=1)
        new = served("def f(image, labels, rng):\n    return image // 2, labels")
        assert rig.engine.needs_new_workers([new])
        pixel_ids = await rig.engine.open_streams_in_new_workers([new])
        assert len(set(rig.worker_pids)) == 2
        rig.produce(slot=2)
        assert (await rig.outcome())[0].slot == 2
        os.kill(before, signal.SIGCONT)
        production, reason = await rig.outcome()
        assert (production.slot, reason) == (1, None)
        plain = pixels(old, production.delivered_ids)
        assert np.array_equal(rig.images(1), 255 - plain)
        assert np.array_equal(rig.images(2), plain // 2)
        await rig.until(lambda: not Path(f"/proc/{before}").exists())
        assert len(rig.worker_pids) == 1
        assert not rig.engine.needs_new_workers([new])
        assert await rig.engine.wait_for_pixel_ids() == pixel_ids
        assert rig.engine.worker_death_count == 0


def test_only_a_transform_that_was_not_tried_needs_new_workers(served: Serve) -> None:
    one, another = served(INVERT), served(INVERT, "another")
    plain = replace(one, transform=None)
    slots = SlotStore()
    unused = BatchEngine([plain], slots, ProcessStats(), hire_local_workers(1))
    assert [unused.needs_new_workers(each) for each in ([plain], [one])] == [False, True]
    engine = BatchEngine([one], slots, ProcessStats(), hire_local_workers(1))
    assert [engine.needs_new_workers(each) for each in ([one, plain], [another], [one, another])] == [False, True, True]
    edited = served(INVERT + "  # edited")
    assert engine.needs_new_workers([edited])


async def test_new_workers_that_open_nothing_in_time_are_discarded(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "NEW_WORKERS_S", 0.01)
    stream = served(INVERT)
    engine = BatchEngine([stream], SlotStore(), ProcessStats(), hire_local_workers(0))
    running = asyncio.ensure_future(engine.run())
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="no new worker has opened train within"):
        await engine.open_streams_in_new_workers([served(INVERT + "  # edited")])
    version = engine._streams.add_batch_under_way("train")
    assert (version.number, version.stream) == (0, stream)
    await running


@pytest.mark.long
async def test_a_transform_that_ends_its_worker_or_never_returns_is_refused_and_old_workers_keep_working(
    served: Serve,
) -> None:
    good, ends = served(INVERT), served("import os\nos._exit(4)\ndef f(*_): pass", "ends")
    endless = served("import time\ndef f(image, labels, rng):\n    time.sleep(1e6)", "endless")
    async with ready_engine(good, row_deadline_s=DEADLINE_S) as rig:
        before = rig.worker_pids
        with pytest.raises(ConfigError, match=r"^streams\.train\.transform: module 'ends' ends its process when"):
            await rig.engine.open_streams_in_new_workers([ends])
        with pytest.raises(ConfigError, match=r"^streams\.train\.transform: transform at endless\.py:2 takes more"):
            await asyncio.wait_for(rig.engine.open_streams_in_new_workers([endless]), ANSWER_S)
        rig.produce()
        await rig.filled()
        assert (rig.worker_pids, rig.engine.worker_death_count) == (before, 0)


async def test_a_transform_that_later_ends_workers_stops_its_stream(served: Serve) -> None:
    rig = Rig(served(INVERT), workers=0)
    rig.produce()
    worker: Any = SimpleNamespace(take_back_tasks=lambda _numbers: [])
    for certain in (False, False):
        assert rig.outcomes.empty()
        fault = TransformFault(0, "it ends its process", certain)
        rig.engine.on_worker_died(worker, WorkerDied("with exit status 1", (), transform_fault=fault))
    assert await rig.failure() == "streams.train.transform: it ends its process"
    rig.produce()
    assert await rig.failure() == "streams.train.transform: it ends its process"
    rig.slots.close()
