"""Parity cases of PiT."""

from parity.families import from_timm

SMALL = {"num_classes": 7, "depth": (1, 2, 1)}

CASES = [
    from_timm("pit_ti_224", **SMALL),
    from_timm("pit_xs_224", "odd grids", image_size=(128, 96), img_size=(128, 96), **SMALL),
    from_timm("pit_s_224", "small", image_size=(64, 64), img_size=64, **SMALL),
    from_timm("pit_b_224", "patches of 14", image_size=(84, 70), img_size=(84, 70), mlp_ratio=2, **SMALL),
]
