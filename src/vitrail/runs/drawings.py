"""Pictures with the answers drawn on them, as files."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitrail.data.targets.drawing import as_rgb
from vitrail.errors import ConfigError, Unsupported, listed
from vitrail.files import open_regular, write_atomically
from vitrail.tasks.answer import Answer

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_SOFTWARE, _MARK = 0x0131, "vitrail predict --draw"  # a tag of Exif, and its value


def is_picture(out: Path) -> bool:
    """Whether a path names one picture; anything else is a folder of them."""
    return out.suffix.lower() in _FORMATS and not out.is_dir()


class Drawings:
    """One file for one picture, or a folder with a PNG for each; ConfigError where a picture would be overwritten."""

    def __init__(self, out: str | Path, names: Sequence[str]) -> None:
        self._out, self._one = Path(out), is_picture(Path(out))
        if self._out.suffix and not self._one and not self._out.is_dir():
            raise ConfigError(f"{out} must end in {listed(_FORMATS)}, or be a folder")
        if self._one and len(names) > 1:
            raise ConfigError(f"{out} is one file, but there are {len(names)} pictures; name a folder")
        here = self._out.resolve()
        if any(here in (path, path.parent)[: 1 if self._one else 2] for path in (Path(n).resolve() for n in names)):
            raise ConfigError(f"{out} would overwrite the pictures themselves; choose another path")
        self._used: set[str] = set()

    def write(self, name: str, picture: Tensor, answer: Answer) -> Path:
        """Draws an answer on its picture, uint8 C H W; Unsupported for answers without a position."""
        drawn = answer.draw_named(as_rgb(picture).contiguous())
        if drawn is None:
            raise Unsupported(f"answers of kind {answer.kind!r} have no position in the picture and cannot be drawn")
        path = self._out if self._one else self._out / self._free(Path(name).stem)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _is_drawing(path):
            raise ConfigError(f"{path} exists and was not drawn by vitrail; name another place for the drawings")
        image, kind = Image.fromarray(drawn.permute(1, 2, 0).contiguous().numpy()), _FORMATS[path.suffix.lower()]
        about = Image.Exif()
        about[_SOFTWARE] = _MARK
        write_atomically(path, lambda new: image.save(new, format=kind, exif=about))
        return path

    def _free(self, stem: str) -> str:
        """A name that no other picture of this call has."""
        name, number = f"{stem}.png", 2
        while name in self._used:
            name, number = f"{stem}-{number}.png", number + 1
        self._used.add(name)
        return name


def _is_drawing(path: Path) -> bool:
    """Whether a file was drawn here, and may be drawn again; what cannot be read was not."""
    try:
        with open_regular(path) as file, Image.open(file, formats=tuple(_FORMATS.values())) as image:
            return image.getexif().get(_SOFTWARE) == _MARK
    except Exception:  # Pillow raises almost anything for damaged files
        return False
