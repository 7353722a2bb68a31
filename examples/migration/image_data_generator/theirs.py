from tensorflow.keras.preprocessing.image import ImageDataGenerator

train = ImageDataGenerator(rescale=1 / 255, horizontal_flip=True).flow_from_directory(
    "images", target_size=(128, 128), class_mode="sparse", batch_size=32
)

model.fit(train, epochs=2)  # model.fit_generator, before Keras 3
