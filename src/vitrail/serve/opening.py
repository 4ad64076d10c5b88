"""How a worker opens what it serves: the engine, its explainer, and calibration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.serve.model import Engine, Explainer, ServedModel


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Opens a model; called in every worker, and again when the model is reloaded.

    `open_engine` takes the path of the model and the number of threads. `open_explainer` takes a path and returns an
    explainer with the names of the outputs that it explains, or None where nothing can be explained. Both must be
    picklable, and import torch only when they are called: the supervisor does without.
    """

    model: str  # an artefact, a folder of artefacts, a run or a checkpoint
    open_engine: "Callable[[str, int | None], Engine]"
    open_explainer: "Callable[[str], tuple[Explainer, tuple[str, ...]] | None]"
    explain: str | None = None  # a run or checkpoint to explain with; None: the model itself
    calibrate: str | None = None  # labelled images; None: the model keeps its own calibration
    threads: int | None = None  # of torch and of the engine

    def __call__(self) -> "ServedModel":
        """The model, ready to serve."""
        import torch  # noqa: PLC0415

        from vitrail.data.sources.opening import open_whole  # noqa: PLC0415
        from vitrail.serve.calibrate import calibrate  # noqa: PLC0415
        from vitrail.serve.model import ServedModel  # noqa: PLC0415

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        engine = self.open_engine(self.model, self.threads)
        if self.calibrate is not None:
            calibrate(engine, open_whole(self.calibrate, schema=engine.task.schema))
        opened = self.open_explainer(self.explain or self.model)
        if opened is None:
            return ServedModel(engine=engine)
        explainer, outputs = opened
        if outputs != engine.task.output_names:
            raise ConfigError(f"{self.explain} cannot explain {self.model}: their outputs have different names")
        return ServedModel(engine=engine, explainer=explainer)
