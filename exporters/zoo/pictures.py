"""Convolutional networks for small pictures."""

from __future__ import annotations

from torch import Tensor, nn

from exporters.model import Model, model_of, seeded
from exporters.zoo.blocks import Norm, Residual, conv2d


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling: LeCun et al. 1998; 61,706 parameters for 28 x 28 and ten classes."""

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * ((size // 2 - 4) // 2) ** 2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, size, size)`` -> ``(batch, classes)``."""
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        x = self.fc2(self.fc1(x.flatten(1)).relu()).relu()
        return self.head(x)  # type: ignore[no-any-return]  # torch's modules are untyped callables


class ResNet(nn.Module):
    """ResNet-8, three stages of one basic block: He et al. 2016, in the size of MLPerf Tiny."""

    def __init__(self, channels: int = 3, classes: int = 10, norm: Norm = "batch", width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv2d(norm, channels, width, 3), nn.ReLU())
        self.stages = nn.Sequential(
            _basic(norm, width, width, 1), _basic(norm, width, 2 * width, 2), _basic(norm, 2 * width, 4 * width, 2)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, size, size)`` -> ``(batch, classes)``."""
        return self.head(self.pool(self.stages(self.stem(x))).flatten(1))  # type: ignore[no-any-return]  # likewise


def _basic(norm: Norm, inside: int, outside: int, stride: int) -> nn.Sequential:
    body = nn.Sequential(conv2d(norm, inside, outside, 3, stride=stride), nn.ReLU(), conv2d(norm, outside, outside, 3))
    short = None if inside == outside and stride == 1 else conv2d(norm, inside, outside, 1, stride=stride)
    return nn.Sequential(Residual(body, short), nn.ReLU())


class MobileNet(nn.Module):
    """Inverted residuals with linear bottlenecks: Sandler et al. 2018 (MobileNetV2), narrowed for 32 x 32 pictures."""

    BLOCKS = ((1, 8, 1), (4, 16, 2), (4, 16, 1), (4, 24, 2), (4, 24, 1), (4, 32, 2))  # expansion, channels, stride

    def __init__(self, channels: int = 3, classes: int = 10, norm: Norm = "group") -> None:
        super().__init__()
        self.stem = nn.Sequential(conv2d(norm, channels, 16, 3), nn.ReLU6())
        inside, blocks = 16, []
        for expansion, outside, stride in self.BLOCKS:
            blocks.append(_inverted(norm, inside, outside, expansion, stride))
            inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(conv2d(norm, inside, 64, 1), nn.ReLU6())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, size, size)`` -> ``(batch, classes)``."""
        return self.head(self.pool(self.last(self.blocks(self.stem(x)))).flatten(1))  # type: ignore[no-any-return]  # likewise


def _inverted(norm: Norm, inside: int, outside: int, expansion: int, stride: int) -> nn.Module:
    wide = inside * expansion
    expand = [] if expansion == 1 else [conv2d(norm, inside, wide, 1), nn.ReLU6()]
    depthwise = conv2d(norm, wide, wide, 3, stride=stride, groups=wide)
    body = nn.Sequential(*expand, depthwise, nn.ReLU6(), conv2d(norm, wide, outside, 1))
    return Residual(body) if inside == outside and stride == 1 else body


def lenet(
    *,
    channels: int = 1,
    size: int = 28,
    classes: int = 10,
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`LeNet` as a model."""
    module = seeded(lambda: LeNet(channels, size, classes), seed)
    title = f"lenet {channels}x{size}x{size}-{classes}"
    return model_of(module, [(channels, size, size)], batch=batch, personal=personal, title=title)


def resnet(
    *,
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    norm: Norm = "batch",
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`ResNet` as a model."""
    module = seeded(lambda: ResNet(channels, classes, norm), seed)
    title = f"resnet8 {channels}x{size}x{size}-{classes}, {norm} norm"
    return model_of(module, [(channels, size, size)], batch=batch, personal=personal, title=title)


def mobilenet(
    *,
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    norm: Norm = "group",
    batch: int = 16,
    seed: int = 0,
    personal: tuple[str, ...] = (),
) -> Model:
    """A seeded :class:`MobileNet` as a model."""
    module = seeded(lambda: MobileNet(channels, classes, norm), seed)
    title = f"mobilenet {channels}x{size}x{size}-{classes}, {norm} norm"
    return model_of(module, [(channels, size, size)], batch=batch, personal=personal, title=title)
