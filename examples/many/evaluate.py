"""Evaluates models whose files' names come in, a line each: see train.py."""

from __future__ import annotations

import sys

import keras

import streamd
from streamd.frameworks.keras import fit_data


def main() -> None:
    """Prints a line for each model."""
    with streamd.connect() as client, client.subscribe("validation") as stream:
        data = fit_data(stream)
        for line in sys.stdin:
            model = keras.saving.load_model(line.strip())
            found = model.evaluate(data, verbose=0, return_dict=True)
            told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            print(f"{line.strip()}: {told}", flush=True)


if __name__ == "__main__":
    main()
