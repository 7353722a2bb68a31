import keras

import streamd
from streamd.frameworks.keras import fit_data, normalization

with streamd.connect() as client, client.subscribe("train") as stream:
    model = keras.Sequential([normalization(stream.spec), keras.layers.RandomFlip("horizontal"), *model.layers])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(fit_data(stream), epochs=2)
