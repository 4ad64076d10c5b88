"""Structure-aware mutation of all that vitrail reads: `mutator(data, chance)` gives the same bytes for a seed."""
