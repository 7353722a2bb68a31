import torch

import streamd
from streamd.frameworks.torch import loader, normalization

with streamd.connect() as client, client.subscribe("train", epochs=2) as stream:
    data, normalize = loader(stream), normalization(stream.spec)
    for _ in range(2):
        for images, labels in data:
            flipped = torch.rand(len(images), device=images.device) < 0.5  # drawn for each image
            augmented = torch.where(flipped[:, None, None, None], images.flip(3), images)
            step(normalize(augmented), labels)
