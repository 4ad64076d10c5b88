"""The audit of data before training: broken files, duplicates, uneven targets."""
