from pathlib import Path

import keras
import numpy as np
from PIL import Image


class Batches(keras.utils.PyDataset):
    def __init__(self, size=32):
        super().__init__(workers=2, max_queue_size=10)
        folders = sorted(Path("images").iterdir())
        self.files = [(path, label) for label, folder in enumerate(folders) for path in folder.iterdir()]
        self.size = size

    def __len__(self):
        return -(-len(self.files) // self.size)

    def __getitem__(self, index):
        some = self.files[index * self.size : (index + 1) * self.size]
        images = [np.asarray(Image.open(path).convert("RGB").resize((128, 128))) for path, _ in some]
        return np.stack(images), np.array([label for _, label in some])

    def on_epoch_end(self):
        np.random.shuffle(self.files)


model.fit(Batches(), epochs=2)
