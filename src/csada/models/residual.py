"""ResNet-34 and ResNet-9: basic blocks, widths 64 to 512, with a stem for small images or for ImageNet-sized ones.

Parameters carry torchvision's names (conv1, layer1.0.bn2, layer2.0.downsample.0, fc), so its ImageNet weights load.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from csada.errors import InputError
from csada.models.folded import foldable, folded_forward
from csada.models.fused import norm_relu
from csada.models.initial import he_convolutions, seeded
from csada.models.modes import mixes_batch

BLOCKS = {9: (1, 1, 1, 1), 34: (3, 4, 6, 3)}
WIDTHS = (64, 128, 256, 512)
STEMS = ("small", "imagenet")


class BasicBlock(nn.Module):
    """x -> relu(x + bn(conv(relu(bn(conv(x)))))), with a 1x1 convolution on the short way where the shape changes."""

    static = folds = True

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        return norm_relu(self.bn2, self.conv2(out), x if self.downsample is None else self.downsample(x))


class ResNet(nn.Module):
    """[N, channels, H, W] -> logits [N, classes]; build it with `resnet`."""

    static = True

    def __init__(self, blocks: tuple[int, ...], classes: int, channels: int, stem: str) -> None:
        super().__init__()
        if stem == "small":
            self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        else:
            self.conv1 = nn.Conv2d(channels, WIDTHS[0], 7, 2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = _layer(WIDTHS[0], WIDTHS[0], blocks[0], stride=1)
        self.layer2 = _layer(WIDTHS[0], WIDTHS[1], blocks[1], stride=2)
        self.layer3 = _layer(WIDTHS[1], WIDTHS[2], blocks[2], stride=2)
        self.layer4 = _layer(WIDTHS[2], WIDTHS[3], blocks[3], stride=2)
        self.fc = nn.Linear(WIDTHS[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and torch.is_autocast_enabled("cuda") and not mixes_batch(self) and foldable(self):
            return folded_forward(self, torch.get_autocast_dtype("cuda"))(x)
        x = self.maxpool(norm_relu(self.bn1, self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _layer(width_in: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (BasicBlock(width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(width_in, width, stride), *rest)


def resnet(depth: int, classes: int, channels: int = 3, stem: str = "small", *, seed: int = 0) -> ResNet:
    """stem "small": a 3x3 convolution, for images up to 64 pixels; "imagenet": 7x7 with stride 2, then max-pooling."""
    if depth not in BLOCKS:
        raise InputError(f"no ResNet of {depth} layers; known depths: {', '.join(map(str, BLOCKS))}")
    if stem not in STEMS:
        raise InputError(f"unknown stem {stem!r}; known stems: {', '.join(STEMS)}")
    if classes < 1 or channels < 1:
        raise InputError(f"a ResNet needs at least one class and one channel, got {classes} and {channels}")
    with seeded(seed):
        model = ResNet(BLOCKS[depth], classes, channels, stem)
        he_convolutions(model)
    return model
