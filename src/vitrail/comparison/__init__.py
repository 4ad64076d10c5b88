"""Runs of one task side by side: what they did otherwise, how they differ on the same images, and what each costs."""
