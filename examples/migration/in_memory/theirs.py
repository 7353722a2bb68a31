from pathlib import Path

import numpy as np
from PIL import Image

files = [(path, label) for label, folder in enumerate(sorted(Path("images").iterdir())) for path in folder.iterdir()]
images = np.stack([np.asarray(Image.open(path).convert("RGB").resize((128, 128))) for path, _ in files])
labels = np.array([label for _, label in files])

model.fit(images, labels, batch_size=32, epochs=2)
