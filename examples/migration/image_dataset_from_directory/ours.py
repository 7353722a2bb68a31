import streamd
from streamd.frameworks.keras import fit_data

with (
    streamd.connect() as client,
    client.subscribe("train", epochs=2) as train,
    client.subscribe("validation") as validation,
):
    model.fit(fit_data(train), validation_data=fit_data(validation), epochs=2)
