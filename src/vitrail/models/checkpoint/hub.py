"""Checkpoints by address: a local path, or `hf-hub:owner/name[@revision]`, which is downloaded."""

import re
from pathlib import Path

from vitrail.errors import CheckpointError
from vitrail.files import read_text
from vitrail.strict_yaml import from_yaml

PREFIX = "hf-hub:"
_PATTERN = re.compile(r"hf-hub:(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_CARD = "README.md"
_CARD_BYTES, _CARD_VALUES = 1 << 20, 10_000
_LICENCE = 200  # letters
_ABOUT = ("config.json", "preprocessor_config.json")  # architecture and preprocessing
# The first of these groups that the repository has is downloaded, with the two files above, and nothing else.
_GROUPS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
    ("*.safetensors", "*.pth", "*.pt", "*.bin"),
)
_NEVER = ("*/*", "training_args*", "optimizer*", "scheduler*", "rng_state*")


def locate(source: str | Path) -> Path:
    """The local path of a checkpoint, downloaded into the hub's cache where the source names a hub repository."""
    if not str(source).startswith(PREFIX):
        return Path(source).expanduser()
    match = _PATTERN.fullmatch(str(source))
    if match is None:
        raise CheckpointError(f"{source!r} is not a valid hub address; write hf-hub:owner/name[@revision]")
    for group in _GROUPS:
        folder = _fetch(match["repository"], match["revision"], group)
        if any(item for pattern in group for item in folder.glob(pattern)):
            return folder
    raise CheckpointError(f"{source} has no weight file (.safetensors, .bin, .pth or .pt)")


def card_licence(source: str | Path) -> str | None:
    """The licence that the model card of a hub repository names; None where there is none, or no hub."""
    match = _PATTERN.fullmatch(str(source))
    if match is None:
        return None
    try:
        card = _fetch(match["repository"], match["revision"], (_CARD,)) / _CARD
        found = from_yaml(read_text(card, _CARD_BYTES).split("---")[1], most=_CARD_VALUES)
    except (CheckpointError, OSError, IndexError, ValueError):
        return None
    named = (found.get("license_name") or found.get("license")) if isinstance(found, dict) else None
    return str(named)[:_LICENCE] if named else None


def _fetch(repository: str, revision: str | None, group: tuple[str, ...]) -> Path:
    """The folder of the hub's cache with those files of a group that the repository has."""
    try:
        from huggingface_hub import errors, snapshot_download  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise CheckpointError("hub addresses need the package huggingface_hub: pip install huggingface_hub") from error
    reasons = {
        errors.GatedRepoError: "it is gated: accept its conditions on the hub, then log in with `hf auth login`",
        errors.RepositoryNotFoundError: "the repository does not exist, or is private and you are not logged in",
        errors.RevisionNotFoundError: f"it has no revision {revision!r}",
        errors.LocalEntryNotFoundError: "it is not in the cache, and the hub is unreachable or HF_HUB_OFFLINE is set",
    }
    wanted = [*_ABOUT, *group]
    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=wanted, ignore_patterns=list(_NEVER))
        )
    except Exception as error:  # network errors are of many types
        known = [reason for kind, reason in reasons.items() if isinstance(error, kind)]
        reason = known[0] if known else f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{PREFIX}{repository} could not be downloaded: {reason}") from error
