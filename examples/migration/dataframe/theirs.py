import pandas as pd
from tensorflow.keras.preprocessing.image import ImageDataGenerator

table = pd.read_csv("all.csv")
train = ImageDataGenerator(rescale=1 / 255).flow_from_dataframe(
    table[table.split == "train"], x_col="image", y_col="angle", class_mode="raw",
    target_size=(128, 128), batch_size=32, validate_filenames=False,
)  # fmt: skip

model.fit(train, epochs=2)
