"""Checkpoints by address: a local path, or `hf-hub:owner/name[@revision]`."""

import re
from pathlib import Path

from vitrail.errors import CheckpointError

PREFIX = "hf-hub:"
_PATTERN = re.compile(r"hf-hub:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def locate(source: str | Path) -> Path:
    """The local path of a checkpoint, downloaded into the hub's cache where the source names a hub repository."""
    if not str(source).startswith(PREFIX):
        return Path(source).expanduser()
    match = _PATTERN.fullmatch(str(source))
    if match is None:
        raise CheckpointError(f"{source!r} is no hub address; write hf-hub:owner/name or hf-hub:owner/name@revision")
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415  (an extra, and slow to import)
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415
    except ImportError as error:
        raise CheckpointError("hub addresses need huggingface_hub: pip install 'vitrail[hub]'") from error
    repository, revision = match["repository"], match["revision"]
    for patterns in (["*.safetensors", "*.safetensors.index.json"], ["*.bin", "*.bin.index.json", "*.pth", "*.pt"]):
        try:
            path = snapshot_download(repository, revision=revision, allow_patterns=["config.json", *patterns])
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            raise CheckpointError(f"{source} could not be fetched: {str(error).strip().splitlines()[0]}") from error
        if any(item.name != "config.json" for item in Path(path).iterdir()):
            return Path(path)
    raise CheckpointError(f"{source} holds no weights that can be read: no .safetensors, .bin, .pth or .pt file")
