import keras

train, validation = keras.utils.image_dataset_from_directory(
    "flowers", validation_split=0.2, subset="both", seed=1, image_size=(180, 180), batch_size=32
)

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
