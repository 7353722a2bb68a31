"""The programs of examples/many do with several trainers what their docstrings say."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from support.daemon_process import LIMIT_S, DaemonProcess, wait_until, write_images
from support.example_daemons import EXAMPLES, serving

import streamd
from streamd.client import Batch, Client

FOLDER: Final = EXAMPLES / "many"
RATES: Final = (0.01, 0.003, 0.001, 0.0003)

Import = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    place = tmp_path_factory.mktemp("d")
    write_images(place / "photos", {"birch": 130, "oak": 130}, size=(240, 320))
    with serving(FOLDER, place) as daemon:
        yield daemon


@pytest.fixture
def example(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports a program as if it was started beside the daemon; nothing of it is left here."""
    monkeypatch.setenv("STREAMD_ENDPOINT", daemon.endpoint)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module
    for name in [name for name, module in sys.modules.items() if str(FOLDER) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def taken(example: Import, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The ids of the samples that each trainer, which is a thread here, has shown its model."""
    ids: dict[int, list[int]] = defaultdict(list)
    model = example("softmax").Softmax
    gradient = model.gradient

    def noted(self: Any, batch: Batch) -> Any:
        ids[threading.get_ident()] += batch.sample_ids.tolist()
        return gradient(self, batch)

    monkeypatch.setattr(model, "gradient", noted)
    return ids


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[Client]:
    with streamd.connect(daemon.endpoint) as client:
        yield client


def have_begun(taken: dict[int, list[int]], trainers: int) -> bool:
    return len(taken) == trainers


def produced(client: Client) -> float:
    return client.stats().get("stream.train", {}).get("produced", 0.0)


@pytest.mark.long
def test_trainers_of_a_search_that_start_one_after_another_share_each_decode(
    example: Import,
    taken: dict[int, list[int]],
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, spec = example("learning_rate"), client.spec("train")
    monkeypatch.setattr(program, "EPOCHS", 8)  # so that the first of them is still there when the last one comes
    before = produced(client)
    with ThreadPoolExecutor(len(RATES)) as pool:
        searches = []
        for number, rate in enumerate(RATES, 1):
            searches.append(pool.submit(program.search, rate))
            wait_until(partial(have_begun, taken, number), "the last of them has taken a batch")
        for search in searches:
            search.result(LIMIT_S)
    for ids in taken.values():
        assert Counter(ids) == dict.fromkeys(range(spec.samples), program.EPOCHS)
    assert produced(client) - before <= 1.25 * spec.batches * program.EPOCHS
    told = re.findall(r"([\d.]+) decodes a batch", capsys.readouterr().out)
    assert len(told) == len(RATES)
    assert float(told[-1]) <= 1.25


@pytest.mark.long
def test_two_ranks_share_the_data_set_less_the_tail_that_the_receipt_names(
    example: Import,
    taken: dict[int, list[int]],
    client: Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program, spec = example("ranks"), client.spec("train")
    assert spec.batches % program.WORLD == 1
    one, other = program.main()
    np.testing.assert_array_equal(one.weights, other.weights)
    tails = [client.batch("train", epoch, spec.batches - 1).sample_ids.tolist() for epoch in range(program.EPOCHS)]
    seen = Counter(sample for ids in [*taken.values(), *tails] for sample in ids)
    assert seen == dict.fromkeys(range(spec.samples), program.EPOCHS)
    told = [int(count) for count in re.findall(r"(\d+) dropped", capsys.readouterr().out)]
    assert told == program.WORLD * [len(tail) for tail in tails]


@pytest.mark.train
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, beside NumPy 2
@pytest.mark.usefixtures("example")
def test_each_model_is_evaluated_on_the_whole_validation_stream_while_another_is_trained(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, str(FOLDER / "evaluate.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as evaluating:
        with redirect_stdout(evaluating.stdin):
            runpy.run_path(str(FOLDER / "train.py"), run_name="__main__")
        told, _ = evaluating.communicate(timeout=LIMIT_S)
    assert [line.partition(":")[0] for line in told.splitlines()] == [f"epoch-{epoch}.keras" for epoch in (1, 2)]
    (validation,) = (each for each in client.status().streams if each.name == "validation")
    assert (validation.receipts_ok, validation.receipts_bad) == (2, 0)


@pytest.mark.train
def test_trainers_of_the_same_pixels_augment_them_each_in_its_own_way(
    example: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    program = example("augment")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(program.main, (1, 2)))
    told = capsys.readouterr().out
    (pixels, augmented), (others_pixels, others_augmented) = re.findall(r"the same (\w+) it made (\w+)", told)
    assert pixels == others_pixels
    assert len({pixels, augmented, others_augmented}) == 3
    assert told.count("ok=True") == 2
