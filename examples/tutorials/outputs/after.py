import keras

from streamd import connect
from streamd.frameworks.keras import fit_data

train, validation = (fit_data(connect().subscribe(name)) for name in ("train", "validation"))

images = keras.Input((96, 96, 3))
features = keras.layers.Rescaling(1 / 255)(images)
for width in (16, 32, 64):
    features = keras.layers.Conv2D(width, 3, strides=2, activation="relu")(features)
features = keras.layers.GlobalAveragePooling2D()(features)
age = keras.layers.Dense(1, name="age")(features)
mood = keras.layers.Dense(3, activation="softmax", name="mood")(features)

model = keras.Model(images, {"age": age, "mood": mood})
model.compile("adam", {"age": "mae", "mood": "sparse_categorical_crossentropy"})
model.fit(train, validation_data=validation, epochs=3)
