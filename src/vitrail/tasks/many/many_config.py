"""Which tasks a backbone has heads for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Targets
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import Schema, Target
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.tasks.dense import DenseConfig
from vitrail.tasks.many.many_heads import Many
from vitrail.tasks.task import TaskConfig

_TAKEN = ("path", "error", "model", "name", "batch", "milliseconds", "display")  # keys beside an answer


@dataclass(frozen=True, kw_only=True)
class ManyConfig(DenseConfig, kind="many"):
    """Several tasks by name, each with its own options; a name without a kind is the kind.

    Their losses are balanced by learned uncertainty. An image needs the targets of one of them at least: the others do
    not learn from it.
    """

    target_kinds: ClassVar[tuple[str, ...]] = tuple(Target.kinds)
    inferred: ClassVar[bool] = False
    tasks: dict[str, TaskConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ConfigError for tasks that cannot share a backbone."""
        super().__post_init__()
        if not self.tasks:
            raise ConfigError("task many needs the names of its tasks, such as --task detect,segment or tasks: [...]")
        for name, config in self.tasks.items():
            if not name.isidentifier() or name in _TAKEN or hasattr(dict, name):
                raise ConfigError(
                    f"{name!r} is not allowed as the name of a task; use another, such as {config.kind!r}"
                )
            if not config.target_kinds or isinstance(config, ManyConfig) or config.stored().kind != config.kind:
                raise ConfigError(f"task {config.kind!r} cannot be one of many; train it alone")
        kinds = self.wanted().kinds
        if twice := [kind for kind in kinds if kinds.count(kind) > 1]:
            names = [name for name, config in self.tasks.items() if twice[0] in config.target_kinds]
            raise ConfigError(f"tasks {', '.join(names)} would learn from the same target ({twice[0]}); leave out one")

    def build(self, backbone: Backbone | None, schema: Schema) -> Many:
        """The tasks around one backbone."""
        return Many(self, schema, backbone, self.tasks)

    def wanted(self, columns: tuple[str, ...] = ()) -> Wanted:
        """The targets of all tasks."""
        kinds = tuple(kind for config in self.tasks.values() for kind in config.target_kinds)
        return Wanted(columns, kinds, several=True)

    def learns(self, schema: Schema) -> dict[str, Any]:
        """The targets of all tasks; ConfigError where one has none."""
        return {name: target for config in self.tasks.values() for name, target in config.learns(schema).items()}

    @property
    def reweights(self) -> bool:
        """Whether the loss of a task corrects for the frequency of classes."""
        return any(config.reweights for config in self.tasks.values())

    def decided(self, schema: Schema, targets: Targets) -> tuple[TaskConfig, list[str]]:
        """What each task decides by its targets."""
        notes: list[str] = []
        tasks: dict[str, TaskConfig] = {}
        for name, config in self.tasks.items():
            tasks[name], more = config.decided(config.learns(schema), targets)
            notes += _of_task(name, more)
        return replace(self, tasks=tasks), notes

    def stored(self) -> TaskConfig:
        """Each task as the trained model has it."""
        return replace(self, tasks={name: config.stored() for name, config in self.tasks.items()})

    def adapt(
        self, schema: Schema, augment: AugmentConfig, mix: MixConfig
    ) -> tuple[Schema, AugmentConfig, MixConfig, list[str]]:
        """What all tasks can use."""
        found: dict[str, Any] = {}
        notes: list[str] = []
        for name, config in self.tasks.items():
            own, augment, mix, more = config.adapt(config.learns(schema), augment, mix)
            found |= own
            notes += _of_task(name, more)
        return found, augment, mix, notes


def _of_task(name: str, notes: Sequence[str]) -> list[str]:
    """Notes of one of many tasks, with the names that its options have here."""
    return [f"{name}: {note.replace('task.', f'tasks.{name}.')}" for note in notes]
