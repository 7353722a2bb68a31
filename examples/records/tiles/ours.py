"""Trains on tiles of 16 bits and four channels:  streamd serve --config config.yaml & python ours.py"""

from model import EPOCHS, build_judge

import streamd
from streamd.frameworks.keras import fit_data, normalization

with streamd.connect() as client:
    train, validation = (fit_data(client.subscribe(name)) for name in ("train", "validation"))
    model = build_judge(normalization(train.spec))
    history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
