"""Image -> tokens -> tokens: the layers that every family shares.

One legend of shapes for the whole project: B batch, N patches, P prefix tokens, D width, A heads, d head width,
C channels, H W pixels, h w the grid of patches (N = h * w, rows first). Sequences are B P+N D, prefix first.
"""
