"""Checkpoints by address: a local path, or `hf-hub:owner/name[@revision]`."""

import re
from pathlib import Path

from vitrail.errors import CheckpointError

PREFIX = "hf-hub:"
_PATTERN = re.compile(r"hf-hub:(?P<repository>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
_ABOUT = ("config.json", "preprocessor_config.json")  # what the weights are, and how pixels were brought to them
# The first group that a repository has a file of is fetched, beside what tells about it, and nothing else.
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
        raise CheckpointError(f"{source!r} is no hub address; write hf-hub:owner/name or hf-hub:owner/name@revision")
    for group in _GROUPS:
        folder = _fetch(match["repository"], match["revision"], group)
        if any(item for pattern in group for item in folder.glob(pattern)):
            return folder
    raise CheckpointError(f"{source} holds no weights that can be read: no .safetensors, .bin, .pth or .pt file")


def _fetch(repository: str, revision: str | None, group: tuple[str, ...]) -> Path:
    """The folder of the hub's cache with the files of a group, as far as the repository has them."""
    try:
        from huggingface_hub import errors, snapshot_download  # noqa: PLC0415  (an extra, and slow to import)
    except ImportError as error:
        raise CheckpointError("hub addresses need huggingface_hub: pip install 'vitrail[hub]'") from error
    reasons = {
        errors.GatedRepoError: "it is gated: accept its conditions on the hub, then log in with `hf auth login`",
        errors.RepositoryNotFoundError: "there is no such repository, or it is private and you are not logged in",
        errors.RevisionNotFoundError: f"it has no revision {revision!r}",
        errors.LocalEntryNotFoundError: "it is not in the cache, and the hub is out of reach or HF_HUB_OFFLINE is set",
    }
    wanted = [*_ABOUT, *group]
    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=wanted, ignore_patterns=list(_NEVER))
        )
    except Exception as error:  # the network fails in more ways than one can name
        known = [reason for kind, reason in reasons.items() if isinstance(error, kind)]
        reason = known[0] if known else f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(f"{PREFIX}{repository} could not be fetched: {reason}") from error
