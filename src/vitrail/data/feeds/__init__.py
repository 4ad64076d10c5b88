"""From data sets to batches: packed once and memory-mapped, or streamed."""
