"""Trains a detector on the boxes of a COCO file:  streamd serve --config config.yaml & python ours.py"""

from model import EPOCHS, build_detector, judge

import streamd
from streamd.frameworks.keras import fit_data

with streamd.connect() as client:
    train, validation = (fit_data(client.subscribe(name)) for name in ("train", "validation"))
    model = build_detector()
    history = model.fit(train, validation_data=validation, epochs=EPOCHS, verbose=2)
    score = judge(model, validation)
    print(f"validation: F1 {score:.2f}")
