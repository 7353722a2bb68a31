"""Learns without labels from two views of each photo:  streamd serve --config config.yaml & python ours.py"""

from model import EPOCHS, SimCLR, judge

import streamd
from streamd.frameworks.keras import fit_data

with streamd.connect() as client:
    train, validation = (fit_data(client.subscribe(name)) for name in ("train", "validation"))
    model = SimCLR()
    history = model.fit(train, epochs=EPOCHS, verbose=2)
    score = judge(model.encoder, validation)
    print(f"validation: {score:.0%} of the nearest neighbours have the same pattern")
