"""Trains on clips of three frames:  streamd serve --config config.yaml & python ours.py"""

from model import EPOCHS, build_driver

import streamd
from streamd.frameworks.keras import fit_data

with streamd.connect() as client:
    train, validation = (fit_data(client.subscribe(name)) for name in ("train", "validation"))
    model = build_driver()
    history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
