"""What a path stands for: a run, a checkpoint, the packaged model, or pictures; and the nearest to a misspelt one."""

from pathlib import Path

from vitrail.data.decode import SUFFIXES as PICTURES
from vitrail.errors import CheckpointError, nearest
from vitrail.models.checkpoint.files import PICKLES, is_word
from vitrail.models.checkpoint.hub import PREFIX
from vitrail.models.registry import is_known, presets, usual_names
from vitrail.packaged import NAMES as PACKAGED
from vitrail.packaged import find_packaged
from vitrail.runs.record import FILE


def checkpoint_path(source: str | Path) -> str | Path:
    """Where weights lie: what was named, or the folder of those that ship with the package."""
    if source in PACKAGED:
        return find_packaged(str(source))
    _refuse_misspelt(str(source))
    return source


def is_name(source: str | Path) -> bool:
    """Whether a source is the name of a model of `vitrail models`, and not a file or folder."""
    return isinstance(source, str) and source in presets() and not Path(source).exists()


def _refuse_misspelt(source: str) -> None:
    """Names the nearest of what lies there and, for a word, of the packaged model, the runs below runs/ and models."""
    path = Path(source)
    if path.exists() or is_known(source):
        return
    paths = {item.name: str(item) for item in path.parent.iterdir()} if path.parent.is_dir() else {}
    if is_word(path):
        paths |= {name: name for name in (*PACKAGED, *usual_names())}
        paths |= {file.parent.name: str(file.parent) for file in Path("runs").glob(f"*/{FILE}")}
    hint = nearest(path.name, paths)
    for name, found in paths.items():
        hint = hint.replace(f"{name!r}?", f"{found!r}?")
    if hint.startswith("did you mean"):
        raise CheckpointError(f"{source} does not exist; {hint}")


def names_model(source: str | Path) -> bool:
    """Whether a path names a run, a checkpoint or the packaged model, rather than pictures."""
    text, path = str(source), Path(source).expanduser()
    if text in PACKAGED or text.startswith(PREFIX):
        return True
    if path.is_dir():
        weights = (".safetensors", *PICKLES)
        return any(item.name == FILE or item.suffix in weights for item in path.iterdir())
    # What does not exist is taken for a misspelt run, unless it is named like a picture.
    return path.suffix in (".safetensors", *PICKLES) or not (path.suffix.lower() in PICTURES or path.exists())
