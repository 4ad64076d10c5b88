"""Augmentation of batches on the device: geometry (with its maps), colour, mixing."""
