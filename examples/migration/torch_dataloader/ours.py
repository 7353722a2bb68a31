import streamd
from streamd.frameworks.torch import loader

with streamd.connect() as client, client.subscribe("train", epochs=2) as stream:
    batches = loader(stream)
    for _ in range(2):
        for images, labels in batches:
            step(images, labels)
