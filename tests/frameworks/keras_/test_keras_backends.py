"""Each of Keras's backends with its own environment: the tests of `fit_data` run in it, on the library itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from loader_process import python_of
from support.leased_arrays import Lender
from support.library_tests import run_tests_in
from support.stream_fake import ANGLE, FakeStream, make_spec

from streamd.core.spec import ImageSpec
from streamd.errors import ConfigError
from streamd.frameworks.keras import fit_data, load_keras

HERE = Path(__file__).parent

FIT_DATA = (
    "test_frameworks_keras_fit_data.py",
    "test_frameworks_keras_calls.py",
    "test_frameworks_keras_images.py",
    "test_keras_loss_weights.py",
    "test_keras_adapter.py",
    "test_keras_arguments.py",
)

pytestmark = [pytest.mark.train, pytest.mark.timeout(360)]  # it may have to install the backend


@pytest.mark.parametrize(
    ("backend", "modules"),
    [
        ("jax", (*FIT_DATA, "test_keras_nan_guard.py", "jax_properties.py")),
        ("torch", (*FIT_DATA, "test_keras_training_state.py")),
        ("tensorflow", ("replica_properties.py",)),  # in its own process: devices are divided before they are used
    ],
)
def test_a_backend_keeps_every_property_of_fit_data(tmp_path: Path, backend: str, modules: tuple[str, ...]) -> None:
    run_tests_in(
        python_of(None if backend == "tensorflow" else f"keras_{backend}"),
        [HERE / name for name in modules],
        KERAS_BACKEND=backend,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
        JAX_COMPILATION_CACHE_DIR=str(tmp_path),  # the tests' models are much the same
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )


def test_memory_is_lent_again_when_the_framework_has_released_it() -> None:
    from streamd.frameworks.keras.adapter import LeaseSparingConverter  # noqa: PLC0415 - imports Keras

    lender, held = Lender(), list[object]()
    sparing = LeaseSparingConverter(lambda array: array, np.copy, held.clear)
    first, second, third = (lender.lend() for _ in range(3))
    assert sparing(first) is first
    held.append(first[1:])  # a view that is garbage, until it is collected
    del first
    assert sparing(second) is second
    assert held == []
    view = second[1:]
    del second
    copied = sparing(third)
    assert copied is not third
    np.testing.assert_array_equal(copied, third)
    assert lender.held == 2
    np.testing.assert_array_equal(view[0], 1)


def test_all_images_of_a_batch_are_lent_together() -> None:
    from streamd.frameworks.keras.adapter import LeaseSparingConverter  # noqa: PLC0415 - as above

    collected: list[None] = []
    sparing = LeaseSparingConverter(lambda array: array, np.copy, lambda: collected.append(None))
    batch = next(next(FakeStream(make_spec(images={"a": ImageSpec(8, 8, 3), "b": ImageSpec(4, 4, 1)})).epochs()))
    assert all(sparing(array) is array for array in batch.arrays.values())
    assert collected == []


def test_labels_are_copied_since_their_owner_may_write_them() -> None:
    from streamd.frameworks.keras.adapter import build_converter  # noqa: PLC0415 - as above

    labels = np.arange(4)
    given = build_converter("jax")(labels)
    labels[:] = 9
    assert given.tolist() == [0, 1, 2, 3]


def test_an_unknown_backend_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_keras().backend, "backend", lambda: "openvino")
    with pytest.raises(ConfigError, match="TensorFlow, JAX or torch, but here Keras runs on openvino: set KERAS_BACK"):
        fit_data(FakeStream(make_spec(ANGLE)))


def test_a_keras_distribution_is_refused_on_a_backend_that_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keras = load_keras()
    mesh = SimpleNamespace(shape=(2,), axis_names=["batch"])
    both = SimpleNamespace(device_mesh=mesh, batch_dim_name="batch")
    monkeypatch.setattr("keras.src.distribution.distribution_lib.distribution", lambda: both)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ConfigError, match=r"on JAX only; on tensorflow, one device would do all.*rank=\"auto\""):
        model.fit(fit_data(FakeStream(make_spec(ANGLE))), verbose=0)
