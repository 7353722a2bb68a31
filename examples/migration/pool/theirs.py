import multiprocessing
from pathlib import Path

import numpy as np
from PIL import Image

files = [(path, label) for label, folder in enumerate(sorted(Path("images").iterdir())) for path in folder.iterdir()]


def load(some):
    images = [np.asarray(Image.open(path).convert("RGB").resize((128, 128))) for path, _ in some]
    return np.stack(images), np.array([label for _, label in some])


def plan(size=32, epochs=2):
    for _ in range(epochs):
        np.random.shuffle(files)
        yield from (files[start : start + size] for start in range(0, len(files), size))


with multiprocessing.get_context("fork").Pool(2) as pool:
    batches = (batch for batch in pool.imap(load, plan()))
    model.fit(batches, steps_per_epoch=-(-len(files) // 32), epochs=2)
