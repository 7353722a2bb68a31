import keras

from streamd import connect
from streamd.frameworks.keras import fit_data

train, validation = (fit_data(connect().subscribe(name)) for name in ("train", "validation"))

model = keras.Sequential(
    [
        keras.Input((180, 180, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(5, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
model.fit(train, validation_data=validation, epochs=3)
