import keras
import pandas as pd
import tensorflow as tf

table = pd.read_csv("faces.csv")
table["mood"] = table.mood.astype("category").cat.codes


def read(file, age, mood):
    image = tf.io.decode_jpeg(tf.io.read_file("faces/" + file), channels=3)
    return tf.image.resize(image, (96, 96)), {"age": age, "mood": mood}


def load(rows):
    data = tf.data.Dataset.from_tensor_slices((rows.file, rows.age, rows.mood))
    return data.shuffle(10_000).map(read, tf.data.AUTOTUNE).batch(32).prefetch(tf.data.AUTOTUNE)


train, validation = (load(table[table.split == name]) for name in ("train", "validation"))

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
