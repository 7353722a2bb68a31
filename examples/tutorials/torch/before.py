import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, PILToTensor, Resize

folder = ImageFolder("flowers", Compose([Resize((180, 180)), PILToTensor()]))
train = DataLoader(folder, batch_size=32, shuffle=True, num_workers=2)

layers = [torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 5))
optimizer = torch.optim.Adam(model.parameters())

for _ in range(3):
    for images, labels in train:
        loss = torch.nn.functional.cross_entropy(model(images / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
