"""FastViTs of timm, before anything is folded."""

from parity.families import from_timm

SMALL = {"layers": (1, 1, 2, 1), "embed_dims": (32, 32, 64, 64), "num_classes": 7}

CASES = [
    from_timm("fastvit_t8", image_size=(64, 96), **SMALL),
    from_timm("fastvit_s12", "odd sizes", image_size=(75, 61), in_chans=1, **SMALL),
    from_timm("fastvit_sa12", image_size=(64, 96), **SMALL),
]
