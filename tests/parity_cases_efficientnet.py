"""Parity cases of EfficientNets."""

from parity_families import from_timm

CASES = [
    from_timm("efficientnet_b0", image_size=(64, 64), num_classes=7),
    from_timm("efficientnet_b1", "odd size", image_size=(75, 50), num_classes=7, in_chans=1),
]
