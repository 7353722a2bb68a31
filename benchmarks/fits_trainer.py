"""A trainer with a nearly empty model, for fits.py: at each line it fits as it is told, and answers with its rate.

KERAS_BACKEND=jax python benchmarks/fits_trainer.py ENDPOINT < lines of "stream" or "constant"
"""

from __future__ import annotations

import json
import sys
import time
from itertools import repeat
from typing import Any, Final

import streamd
from streamd.frameworks.keras import fit_data, load_keras

STEPS: Final = 600  # of an epoch of `fit`, below the stream's own
WARM: Final = 20
MEASURED_S: Final = 1.0


def constant(batch: tuple[Any, ...]) -> Any:
    """One batch, ready for the backend, as often as it is asked for: what `fit` takes when data is free."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter  # noqa: PLC0415 - imports a backend

    class Constant(DataAdapter):  # type: ignore[misc]  # Keras has no types
        num_batches = STEPS
        batch_size = has_partial_batch = partial_batch_size = None

        def get_tf_dataset(self) -> Any:
            return repeat(batch)

        get_jax_iterator = get_torch_dataloader = get_tf_dataset

    return Constant()


def model_of(shape: tuple[int, ...], classes: int) -> Any:
    """Looks at a few pixels only, so that a step is Keras's own work."""
    keras = load_keras()
    images = keras.Input(shape, dtype="uint8")
    pixels = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(images[:, ::32, ::32]))
    model = keras.Model(images, keras.layers.Dense(classes)(pixels))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def rate_of(model: Any, data: Any, epochs: int, batch_size: int) -> float:
    """Samples a second."""
    started_s = time.perf_counter()
    model.fit(data, epochs=epochs, verbose=0)
    return epochs * STEPS * batch_size / (time.perf_counter() - started_s)


def main() -> None:
    with streamd.connect(sys.argv[1], timeout=20.0) as client, client.subscribe("train") as stream:
        spec = stream.spec
        data = fit_data(stream, steps=STEPS)
        batch = tuple(map(data.convert, data.feed.build_arrays(next(iter(stream)).copy())))
        sources = {"stream": data, "constant": constant(batch)}
        model = model_of(spec.image_shape, len(spec.labels["label"].classes))
        model.fit(fit_data(stream, steps=WARM), verbose=0)
        epochs = max(1, round(rate_of(model, data, 1, spec.batch_size) * MEASURED_S / (STEPS * spec.batch_size)))
        for line in sys.stdin:
            rate = rate_of(model, sources[line.strip()], epochs, spec.batch_size)
            print(json.dumps({"samples_per_s": rate}), flush=True)


if __name__ == "__main__":
    main()
