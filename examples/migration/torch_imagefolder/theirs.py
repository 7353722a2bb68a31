from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

transform = transforms.Compose(
    [
        transforms.Resize((128, 128)),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
data = DataLoader(ImageFolder("images", transform), batch_size=32, shuffle=True, num_workers=2)

for epoch in range(2):
    for images, labels in data:
        step(images, labels)
