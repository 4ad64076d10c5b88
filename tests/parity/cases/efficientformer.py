"""EfficientFormers of timm, whose attention has one image size."""

from parity.families import from_timm

SMALL = {"embed_dims": (8, 16, 24, 32), "num_classes": 7}

CASES = [
    from_timm("efficientformer_l1", depths=(1, 1, 2, 3), num_vit=1, **SMALL),
    from_timm("efficientformer_l3", "all attend at last", depths=(1, 2, 1, 2), num_vit=4, mlp_ratios=3, **SMALL),
]
