"""Capture: what is read is what the model did, and the model does not notice."""

import copy
import importlib
from contextlib import contextmanager

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import vitrail
from vitrail.errors import ConfigError, Unsupported
from vitrail.explain import attention_layers, capture
from vitrail.layers.attention import Attention, SubsampledAttention

MODULE = importlib.import_module("vitrail.explain.attention.capture")  # the function of its name stands before it
WITHOUT = {"resnet18", "convnext_atto", "fastvit_t8", "efficientnet_b0", "poolformer_s12", "mixer_s32"}
WITH = [name for name in (*one_of_each_family(), "caformer_s18", "fastvit_ma36") if name not in WITHOUT]
REPLACEABLE = [
    "vit_tiny_patch16",
    "swin_tiny_patch4_window7",
    "levit_128s",
    "pvt_tiny",
    "mobilevit_xxs",
    "xcit_nano_12_p16",
]


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_pre_hooks) + len(part._forward_hooks) for part in model.modules())


def whole(name: str, **changes) -> nn.Module:
    """A tiny model whose windows fill every grid."""
    model = tiny(name, **changes)
    return model.resize((64, 64)) if "swin" in name or "dat" in name else model


@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
@pytest.mark.parametrize("name", WITH)
def test_what_is_shown_is_what_was_mixed(name):
    model = whole(name)
    images = pictures(model)
    plain, shown = model(images), 0
    with capture(model, gradients=True) as seen:
        logits = model(images)
    assert torch.equal(logits, plain)
    assert hooks(model) == 0
    for index, layer in seen.layers.items():
        h, w = seen.grid[index]
        assert seen.tokens[index].shape[1] == seen.num_prefix[index] + h * w
        try:
            attention = seen.attention[index]
        except Unsupported as error:
            assert type(layer.module).__name__ in str(error)
            continue
        shown += 1
        torch.testing.assert_close(attention.sum(dim=-1), torch.ones(attention.shape[:3]))
        assert attention.shape[0] == len(images)
        mixed = (attention @ seen.values[index]).transpose(1, 2).flatten(2)
        if name != "dat_tiny" or layer.level < 2:  # points beyond the edge read nothing
            read = seen.mixed[index]
            if not layer.residual:  # between stages, one query stands for several patches
                read = read[:, layer.module.query_of_patch((h, w))]
            torch.testing.assert_close(mixed[:, : read.shape[1]], read, atol=1e-5, rtol=1e-4)
    assert shown


@pytest.mark.parametrize("name", WITH)
def test_layers_are_in_the_order_of_execution(name):
    model, ran = tiny(name), []
    for part in model.modules():
        if isinstance(part, Attention | SubsampledAttention):
            part.register_forward_pre_hook(lambda module, _: ran.append(module))
    model(pictures(model))
    layers = attention_layers(model)
    assert [layer.hooked for layer in layers] == ran
    assert [layer.level for layer in layers] == sorted(layer.level for layer in layers)
    assert all(model.get_submodule(layer.name) is layer.hooked for layer in layers)


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_model_without_attention_says_so(name):
    with pytest.raises(Unsupported, match="no attention"), capture(tiny(name)):
        pass


def test_layers_heads_and_rows_are_chosen():
    model = tiny(depth=3)
    images = pictures(model)
    with capture(model) as everything:
        model(images)
    for rows, numbers in (("class", [0]), (torch.tensor([3, -1]), [3, 6]), ([5], [5])):
        with capture(model, layers=[0, -1], heads=[-1], rows=rows) as seen:
            model(images)
        assert list(seen.attention) == [0, 2]
        torch.testing.assert_close(seen.attention[-1], everything.attention[2][:, 1:, numbers])
        assert seen.attention[2] is seen.attention[-1]  # computed once
        assert [layer in seen.attention for layer in (-1, 0, 1, 7)] == [True, True, False, False]
        with pytest.raises(ConfigError, match="not captured"):
            seen.attention[1]


def test_chunks_join_to_the_whole(monkeypatch):
    model = tiny()
    with capture(model, gradients=True) as seen:
        model(pictures(model)).sum().backward()
    attention, gradients = seen.attention[0], seen.gradients[0]
    monkeypatch.setattr(MODULE, "CHUNK", 2 * 2 * 7 * 3)
    chunks = list(seen.chunks(0))
    assert [len(chunk.rows) for chunk in chunks] == [3, 3, 1]
    torch.testing.assert_close(torch.cat([chunk.attention for chunk in chunks], dim=2), attention)
    torch.testing.assert_close(torch.cat([chunk.gradient for chunk in chunks], dim=2), gradients)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, torch.Tensor):
                self.largest = max(self.largest, part.numel())
        return result


@pytest.mark.parametrize("attention", ["softmax", "window", "local"])
def test_memory_is_linear_in_the_tokens_unless_all_rows_are_asked_for(attention, monkeypatch):
    model = tiny(image_size=256, attention=attention, position="sincos2d")  # 32 x 32 patches, D = 32
    images, count = pictures(model, 1), 1 + 32 * 32
    with torch.no_grad(), capture(model, layers=[-1], rows="class") as seen:
        model(images)
    with Largest() as made:
        assert seen.attention[-1].shape == (1, 2, 1, count)
    assert made.largest <= 3 * 32 * count  # queries, keys and values
    with torch.no_grad(), capture(model, layers=[-1]) as seen:
        model(images)
    monkeypatch.setattr(MODULE, "CHUNK", 2 * count * 16)
    with Largest() as made:
        total = sum(chunk.attention.sum() for chunk in seen.chunks(-1))
    assert made.largest <= 3 * 32 * count
    torch.testing.assert_close(total, torch.tensor(2.0 * count))


@contextmanager
def replaced(layer, attention):
    """The layer with its attention given from outside, so that autograd can be asked for the gradient to it."""
    before = layer.forward

    def forward(tokens, grid):
        result = []
        hook = layer.readout.register_forward_pre_hook(lambda _, inputs: result.append(inputs[0].shape[1]))
        before(tokens, grid)  # how many rows are mixed
        hook.remove()
        mixed = (attention @ layer.contents(tokens, grid)).transpose(1, 2).flatten(2)[:, : result[0]]
        hook = layer.readout.register_forward_pre_hook(lambda _, inputs: (mixed,))
        try:
            return before(tokens, grid)
        finally:
            hook.remove()

    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward


@pytest.mark.filterwarnings("ignore::vitrail.errors.ResampledNotice")
@pytest.mark.parametrize("name", REPLACEABLE)
def test_gradients_are_those_to_the_attention(name):
    model = whole(name).double()
    images = pictures(model, dtype=torch.float64)
    with capture(model, layers=[-1], gradients=True) as seen:
        model(images)[:, 1].sum().backward()
    attention = seen.attention[-1].double().requires_grad_()
    with replaced(attention_layers(model)[-1].module, attention):
        (expected,) = torch.autograd.grad(model(images)[:, 1].sum(), attention)
    torch.testing.assert_close(seen.gradients[-1].double(), expected, atol=1e-4, rtol=1e-4)


def test_gradients_reach_the_attention_of_a_frozen_model():
    model = tiny().requires_grad_(False)
    images = pictures(model)
    with capture(model, gradients=True) as seen:
        model(images)[:, 0].sum().backward()
    inputs = images.clone().requires_grad_()
    with capture(model, gradients=True) as other:
        model(inputs)[:, 0].sum().backward()
    torch.testing.assert_close(seen.gradients[0], other.gradients[0])
    assert seen.gradients[0].abs().max() > 0


def test_gradients_with_recomputed_blocks():
    model = tiny().train()
    images = pictures(model)
    with capture(model, gradients=True) as plain:
        model(images).sum().backward()
    model.checkpointing = True
    with capture(model, gradients=True) as seen:
        model(images).sum().backward()
    for index in (0, 1):
        torch.testing.assert_close(seen.gradients[index], plain.gradients[index])
        torch.testing.assert_close(seen.attention[index], plain.attention[index])


def test_gradients_belong_to_the_last_pass():
    model = tiny()
    images, others = pictures(model), pictures(model)
    with capture(model, gradients=True) as expected:
        model(others).sum().backward()
    with capture(model, gradients=True) as seen:
        (model(images).sum() + model(others).sum()).backward()
        torch.testing.assert_close(seen.gradients[0], expected.gradients[0])
        model(images)
        with pytest.raises(ConfigError, match="no gradient"):
            seen.gradients[1]


def compiled(model, in_place):
    if in_place:
        model.compile(backend="eager")
        return model
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_compiled_models(in_place, warm):
    model = tiny()
    images, others = pictures(model), pictures(model)
    with capture(model, gradients=True) as expected:
        model(images).sum().backward()
    fast = compiled(model, in_place)
    plain = fast(images) if warm else None
    with capture(fast, rows=[0, 2]) as seen:
        fast(others)
        assert len(seen.attention[0]) == 2
        logits = fast(images)
    if warm:
        assert torch.equal(logits, plain)
    for index in (0, 1):
        torch.testing.assert_close(seen.attention[index], expected.attention[index][:, :, [0, 2]])
    with capture(fast, gradients=True) as differentiated:
        fast(images).sum().backward()
    torch.testing.assert_close(differentiated.gradients[0], expected.gradients[0])
    assert torch.equal(fast(images), logits)
    assert hooks(fast) == 0


def test_a_model_with_compiled_parts_under_autocast_and_in_training():
    model = tiny("levit_128s", drop_path=0.5).train()
    images = pictures(model)
    model.stem.compile(backend="eager")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), capture(model) as seen:
        model(images)
    before, random = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    assert seen.attention[0].dtype == torch.float32
    assert seen.tokens[1].dtype == torch.bfloat16
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["levit_128s", "cvt_13", "vit_tiny_patch16"])
def test_training_is_not_disturbed(name):
    model = tiny(name).train()
    twin, images = copy.deepcopy(model), pictures(model)
    torch.manual_seed(1)
    expected = twin(images)
    torch.manual_seed(1)
    with capture(model, gradients=True) as seen:
        logits = model(images)
        logits.sum().backward()
        assert seen.attention[0].shape == seen.gradients[0].shape
    assert torch.equal(logits, expected)
    assert torch.equal(torch.random.get_rng_state(), _after_seed(twin, images))
    assert all(torch.equal(tensor, twin.state_dict()[name]) for name, tensor in model.state_dict().items())


def _after_seed(model, images):
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(1)
    model(images)
    model.load_state_dict(state)
    return torch.random.get_rng_state()


def test_half_precision_and_channels_last():
    model = tiny()
    images = pictures(model)
    with capture(model) as exact:
        model(images)
    with capture(model) as seen:
        model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(seen.attention[1], exact.attention[1])
    half = copy.deepcopy(model).bfloat16()
    with capture(half) as seen:
        half(images.bfloat16())
    assert seen.attention[1].dtype == torch.float32
    torch.testing.assert_close(seen.attention[1], exact.attention[1], atol=5e-3, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16), capture(model) as seen:
        model(images)
    torch.testing.assert_close(seen.attention[1], exact.attention[1], atol=5e-3, rtol=0)


def test_wrapped_for_many_machines():
    model = tiny()
    images = pictures(model)
    with capture(model, gradients=True) as expected:
        model(images).sum().backward()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        plain = wrapped(images)
        for outer in (wrapped, torch.compile(wrapped, backend="eager")):
            with capture(outer, gradients=outer is wrapped) as seen:
                logits = outer(images)
                logits.sum().backward()
            assert torch.equal(logits, plain)
            torch.testing.assert_close(seen.attention[-1], expected.attention[-1])
    finally:
        torch.distributed.destroy_process_group()


def test_bad_input():
    model = tiny()
    for options, says in (
        ({"layers": [2]}, "layer 2 does not exist"),
        ({"heads": [5]}, "head 5 does not exist"),
        ({"rows": "cls"}, "'cls'"),
        ({"layers": -1}, "layers is -1"),
        ({"rows": torch.ones(7, dtype=torch.bool)}, "True"),
    ):
        with pytest.raises(ConfigError, match=says), capture(model, **options):
            pass
    with capture(model, rows=[7]) as seen:
        with pytest.raises(ConfigError, match="nothing was captured"):
            seen.attention[0]
        model(pictures(model))
    with pytest.raises(ConfigError, match="row 7"):
        seen.attention[0]
    with capture(model) as seen:
        model(pictures(model))
    with pytest.raises(ConfigError, match="gradients=True"):
        seen.gradients[0]
    with capture(model, gradients=True) as seen:
        model(pictures(model))
    with pytest.raises(ConfigError, match="no gradient"):
        seen.gradients[1]


def test_models_that_have_no_class_token():
    with (
        pytest.raises(Unsupported, match="class token"),
        capture(tiny("swin_tiny_patch4_window7"), rows="class"),
    ):
        pass
    model = tiny("cvt_13")
    with capture(model, rows="class") as seen:
        model(pictures(model))
    assert seen.attention[-1].shape[2] == 1
    with pytest.raises(Unsupported, match="class token"):
        seen.attention[0]


def test_models_that_leave_tokens_out():
    for reduce in ("merge", "prune"):
        with pytest.raises(Unsupported, match="prunes"), capture(tiny(reduce=reduce)):
            pass
    model = tiny(patch_drop=0.5)
    with capture(model) as seen:
        model(pictures(model))
    assert seen.attention[0].shape[-1] == 7
    with pytest.raises(Unsupported, match="drops"), capture(model.train()):
        pass


def test_public_names():
    assert vitrail.explain.capture is capture
    assert vitrail.explain.Seen is vitrail.explain.Captured
