import streamd
from streamd.frameworks.keras import fit_data

with streamd.connect() as client, client.subscribe("train") as stream:
    model.fit(fit_data(stream), epochs=2)
