import keras

from streamd import connect
from streamd.frameworks.keras import fit_data

train, validation = (fit_data(connect().subscribe(name)) for name in ("train", "validation"))

model = keras.Sequential(
    [
        keras.Input((66, 200, 3)),
        keras.layers.Rescaling(1 / 127.5, offset=-1),
        keras.layers.Conv2D(24, 5, strides=2, activation="relu"),
        keras.layers.Conv2D(36, 5, strides=2, activation="relu"),
        keras.layers.Conv2D(48, 5, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(50, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile("adam", "mse")
model.fit(train, validation_data=validation, epochs=3)
