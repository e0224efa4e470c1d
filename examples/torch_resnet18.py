r"""A narrow ResNet-18 (He et al., 2016) on Fashion-MNIST. The workers average BatchNorm's statistics, too.

scripts/get_data.sh
scripts/local_cluster.sh -m esync --job examples/torch_resnet18.py --workers 0.1,0.2,0.6 -- \
    -ll 0.0003 --momentum 0.9 --max-seconds 60 --eval-seconds 10
"""

from torch import nn

WIDTH = 16  # channels of the first stage; 64 in the paper, which computes 16 times as much


class Block(nn.Module):
    def __init__(self, before, channels, stride):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(before, channels, 3, stride, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)),
        )
        self.short = nn.Sequential()
        if before != channels:
            self.short.extend([nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)])

    def forward(self, images):
        return nn.functional.relu(self.body(images) + self.short(images))


def network():
    layers = nn.Sequential(nn.Conv2d(1, WIDTH, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
    channels = WIDTH
    for stage in range(4):
        for stride in (2 if stage else 1, 1):
            before, channels = channels, WIDTH << stage
            layers.append(Block(before, channels, stride))
    return layers.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)])


def prepare(images, classes):  # of --dataset, where this file has no data(): uint8 (N, 1, 28, 28) -> [0, 1]
    return images / 255, classes
