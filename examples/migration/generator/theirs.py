from pathlib import Path

import numpy as np
from PIL import Image

files = [(path, label) for label, folder in enumerate(sorted(Path("images").iterdir())) for path in folder.iterdir()]


def batches(size=32):
    while True:
        np.random.shuffle(files)
        for start in range(0, len(files), size):
            some = files[start : start + size]
            images = [np.asarray(Image.open(path).convert("RGB").resize((128, 128))) for path, _ in some]
            yield np.stack(images), np.array([label for _, label in some])


model.fit(batches(), steps_per_epoch=-(-len(files) // 32), epochs=2)
