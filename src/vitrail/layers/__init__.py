"""The layers that all model families share, from images to tokens.

Shape letters of the whole project: B batch, N patches, P prefix tokens, D width, A heads, d head width,
R selected rows, C channels, H W pixels, h w the grid of patches (N = h * w, row by row). Sequences are B P+N D, with
the prefix first.

Suggested reading order: patch, tokens, position (then rope and relative, which act inside attention), attention, mlp,
norm, residual, block, pool. A class header such as `class RopeConfig(PositionConfig, kind="rope")` registers the name
that users type; see `vitrail.config`.
"""
