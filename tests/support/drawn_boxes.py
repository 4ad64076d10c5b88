"""Pictures of rectangles with their boxes: what a detector can learn by heart in a test."""

from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 60, 60), "green": (60, 200, 80)}


def rectangles(folder: Path, count: int, *, size: tuple[int, int] = (96, 128), seed: int = 0) -> Path:
    """Writes pictures with two to five rectangles each, and a table of their boxes; returns the table."""
    chance = np.random.default_rng(seed)
    height, width = size
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = ["path,boxes"]
    for number in range(count):
        pixels, cells = chance.normal(40, 8, (height, width, 3)), []
        for _ in range(chance.integers(2, 6)):
            wide, tall = chance.integers(width // 9, width // 3, 2)
            x, y = chance.integers(0, width - wide), chance.integers(0, height - tall)
            name = ("red", "green")[chance.integers(2)]
            pixels[y : y + tall, x : x + wide] = COLOURS[name] + chance.normal(0, 8, (tall, wide, 3))
            cells.append(f"{x} {y} {x + wide} {y + tall} {name}")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{number}.png")
        lines.append(f"images/{number}.png,{'; '.join(cells)}")
    table = folder / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    return table
