"""The benchmark of many heads: twins have the same heads and the same backbone as the parts of the whole."""

import torch
from support.benchmarks import benchmark as load_benchmark
from support.small_tasks import classifier

from vitrail.config import from_dict
from vitrail.data.preprocess import Preprocess
from vitrail.runs.trained import TrainedModel
from vitrail.tasks.many import ManyConfig
from vitrail.tasks.task import TaskConfig

benchmark = load_benchmark("many")


def test_twins_have_the_heads_of_the_whole():
    tasks = benchmark.TASKS
    whole = from_dict(ManyConfig, {"tasks": benchmark.heads(tasks, wide=False)})
    for name in tasks:
        assert from_dict(TaskConfig.kinds[name], benchmark.heads([name], wide=False)[name]) == whole.tasks[name]


def test_options():
    options = benchmark.parse(["--data", "scenes:8:32x48", "--seeds", "0,1"])
    assert (options.image_size, options.seeds, options.device) == ([32, 48], [0, 1], "cpu")
    assert benchmark._spread([0.5]) == "0.500"
    assert benchmark._spread([0.5, 0.7]) == "0.600 (0.500 to 0.700)"


def test_a_group_takes_the_time_of_all_its_models():
    task = classifier()
    preprocess = Preprocess(image_size=task.backbone.config.image_size)
    model = TrainedModel(source="x", backbone=task.backbone, preprocess=preprocess, head=task)
    found = benchmark.forward_times({"one": [model], "three": [model] * 3}, 2, 3)
    assert set(found) == {"one", "three"}
    assert all(time > 0 for time in found.values())
    assert torch.is_grad_enabled()
