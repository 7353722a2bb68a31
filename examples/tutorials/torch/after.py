import torch

from streamd import connect
from streamd.frameworks.torch import loader

train = loader(connect().subscribe("train"))

layers = [torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 5))
optimizer = torch.optim.Adam(model.parameters())

for _ in range(3):
    for images, labels in train:
        loss = torch.nn.functional.cross_entropy(model(images / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
