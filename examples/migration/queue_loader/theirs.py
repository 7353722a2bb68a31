import queue
import threading
from pathlib import Path

import numpy as np
from PIL import Image

files = [(path, label) for label, folder in enumerate(sorted(Path("images").iterdir())) for path in folder.iterdir()]
todo, done = queue.Queue(maxsize=16), queue.Queue(maxsize=16)


def load():
    while (some := todo.get()) is not None:
        images = [np.asarray(Image.open(path).convert("RGB").resize((128, 128))) for path, _ in some]
        done.put((np.stack(images), np.array([label for _, label in some])))


def plan(size=32, epochs=2):
    for _ in range(epochs):
        np.random.shuffle(files)
        for start in range(0, len(files), size):
            todo.put(files[start : start + size])
    for _ in loaders:
        todo.put(None)


loaders = [threading.Thread(target=load, daemon=True) for _ in range(2)]
for thread in [*loaders, threading.Thread(target=plan, daemon=True)]:
    thread.start()
steps = -(-len(files) // 32)
model.fit((done.get() for _ in range(2 * steps)), steps_per_epoch=steps, epochs=2)
