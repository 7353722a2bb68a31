from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self):
        folders = sorted(Path("images").iterdir())
        self.files = [(path, label) for label, folder in enumerate(folders) for path in folder.iterdir()]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        return torch.from_numpy(np.array(Image.open(path).convert("RGB").resize((128, 128)))), label


for epoch in range(2):
    for images, labels in DataLoader(Images(), batch_size=32, shuffle=True, num_workers=2):
        step(images.permute(0, 3, 1, 2), labels)
