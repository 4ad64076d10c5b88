"""Image -> tokens -> tokens: the layers that every family shares.

One legend of shapes for the whole project: B batch, N patches, P prefix tokens, D width, A heads, d head width,
R chosen rows, C channels, H W pixels, h w the grid of patches (N = h * w, rows first). Sequences are B P+N D, prefix
first.

Read them in the order of the image: patch, tokens, position (then rope and relative, which act inside attention),
attention, mlp, norm, residual, block, pool. A class header such as `class RopeConfig(PositionConfig, kind="rope")`
registers the name that people type; see `vitrail.config`.
"""
