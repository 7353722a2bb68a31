import keras

train, validation = keras.utils.image_dataset_from_directory(
    "images", image_size=(128, 128), batch_size=32, crop_to_aspect_ratio=True,
    validation_split=0.2, subset="both", seed=0,
)  # fmt: skip

model.fit(train, validation_data=validation, epochs=2)
