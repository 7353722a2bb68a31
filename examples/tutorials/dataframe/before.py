import keras
import pandas as pd
from tensorflow.keras.preprocessing.image import ImageDataGenerator

table = pd.read_csv("drive.csv")
train, validation = (
    ImageDataGenerator().flow_from_dataframe(
        table[table.split == name], "frames", x_col="image", y_col="angle", class_mode="raw", target_size=(66, 200)
    )
    for name in ("train", "validation")
)

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
