import streamd
from streamd.frameworks.keras import fit_data

with streamd.connect() as client, client.subscribe("train", epochs=2) as stream:
    model.fit(fit_data(stream), epochs=2)
