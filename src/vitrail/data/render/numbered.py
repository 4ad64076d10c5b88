"""Scenes by number, and names of them that look like files: targets refer to their depth and masks by these."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vitrail.data.render.renderer import Truth, render_truth
from vitrail.data.render.scene import Scene, draw_scene

VERSION = 1  # to be raised whenever the same number gives another picture, so that packed ones are rendered again
SUFFIX = ".scene"
_ROOT = Path("/vitrail-scenes")  # not a folder: absolute, so that names do not depend on where a program runs
_NAME = re.compile(r"(\d{1,20})-(\d)-(\d{1,9})-(\d{1,4})x(\d{1,4})", re.ASCII)
_KEPT = 16  # of one picture, depth and mask are asked for one after the other


@dataclass(frozen=True)
class SceneNumber:
    """A picture of a random scene."""

    seed: int
    part: int  # train, validation and test have scenes of their own
    index: int
    height: int
    width: int

    @property
    def scene(self) -> Scene:
        """The scene itself, which does not depend on the size of the picture."""
        return draw_scene(self.seed, self.part, self.index)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture."""
        return self.height, self.width

    @property
    def path(self) -> Path:
        """A name for references; no file has it."""
        return _ROOT / str(VERSION) / f"{self.seed}-{self.part}-{self.index}-{self.height}x{self.width}{SUFFIX}"


def truth_of(path: Path) -> Truth | None:
    """What is known of the picture that a path names; None for any other path."""
    if path.suffix != SUFFIX or path.parent.parent != _ROOT or (found := _NAME.fullmatch(path.stem)) is None:
        return None
    return truth(SceneNumber(*map(int, found.groups())))


@lru_cache(_KEPT)
def truth(number: SceneNumber) -> Truth:
    """Depth, mask and objects of a picture."""
    return render_truth(number.scene, number.size)
