"""What load, save and convert promise, whatever project the weights are of."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from parity.compare import relative_error

import vitrail
from vitrail.errors import CheckpointError, ChosenNotice, ConfigError, HeadNotice, ResampledNotice
from vitrail.models.backbone import Backbone

TINY = {"dim": 32, "depth": 2, "num_heads": 2, "image_size": 32, "num_classes": 3}


@pytest.fixture
def model() -> Backbone:
    model = vitrail.create("vit_tiny_patch16", **TINY)
    torch.nn.init.normal_(model.head.weight)
    model.labels = ("cat", "dog", "owl")
    return model.eval()


@pytest.fixture
def folder(model: Backbone, tmp_path: Path) -> Path:
    vitrail.save(model, tmp_path / "ours")
    return tmp_path / "ours"


def test_a_loaded_model_is_the_saved_one_ready_for_use(model: Backbone, folder: Path) -> None:
    loaded = vitrail.load(folder)
    assert not loaded.training
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert loaded.labels == ("cat", "dog", "owl")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), model(images))
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def test_a_folder_and_a_file(model: Backbone, tmp_path: Path) -> None:
    assert vitrail.save(model, tmp_path / "a" / "b") == tmp_path / "a" / "b" / "model.safetensors"
    assert sorted(item.name for item in (tmp_path / "a" / "b").iterdir()) == ["config.json", "model.safetensors"]
    assert vitrail.save(model, tmp_path / "c" / "one.safetensors") == tmp_path / "c" / "one.safetensors"
    assert [item.name for item in (tmp_path / "c").iterdir()] == ["one.safetensors"]
    for path in (tmp_path / "a" / "b", tmp_path / "a" / "b" / "model.safetensors", str(tmp_path / "c")):
        assert vitrail.load(path).config == model.config


def test_saving_twice_gives_the_same_bytes(model: Backbone, tmp_path: Path) -> None:
    one, two = (vitrail.save(model, tmp_path / name) for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype, model: Backbone, folder: Path, tmp_path: Path) -> None:
    loaded = vitrail.load(folder, dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    vitrail.save(loaded, tmp_path / "again")
    again = vitrail.load(tmp_path / "again", dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), loaded.parameters(), strict=True))


def test_nothing_is_rounded_on_the_way_to_float64(model: Backbone, tmp_path: Path) -> None:
    exact = model.double()
    exact.head.bias.data.fill_(1 / 3)
    vitrail.save(exact, tmp_path / "exact")
    assert torch.equal(vitrail.load(tmp_path / "exact", dtype=torch.float64).head.bias, exact.head.bias)


def test_another_number_of_classes_must_be_asked_for_and_is_said(model: Backbone, folder: Path) -> None:
    with pytest.warns(HeadNotice, match="the head for 3 classes was replaced by a fresh one for 7"):
        loaded = vitrail.load(folder, num_classes=7)
    assert loaded.config.num_classes == 7
    assert loaded.labels is None
    assert loaded(torch.randn(1, 3, 32, 32)).shape == (1, 7)
    body = [name for name in model.state_dict() if not name.startswith("head.")]
    assert all(torch.equal(loaded.state_dict()[name], model.state_dict()[name]) for name in body)


def test_a_head_where_there_was_none_replaces_nothing(model: Backbone, tmp_path: Path) -> None:
    model.reset_head(0)
    vitrail.save(model, tmp_path / "headless")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vitrail.load(tmp_path / "headless", num_classes=7).config.num_classes == 7


def test_the_same_number_of_classes_keeps_the_head(model: Backbone, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = vitrail.load(folder, num_classes=3, image_size=32)
    assert torch.equal(loaded.head.weight, model.head.weight)
    assert loaded.labels == model.labels


def test_no_head_at_all(folder: Path) -> None:
    with pytest.warns(HeadNotice):
        assert vitrail.load(folder, num_classes=0)(torch.randn(1, 3, 32, 32)).shape == (1, 32)


@pytest.mark.parametrize("size", [64, (48, 64)])
def test_another_image_size_resamples_and_says_so(size: int | tuple[int, int], model: Backbone, folder: Path) -> None:
    with pytest.warns(ResampledNotice, match="positions resampled from 32 x 32 to"):
        loaded = vitrail.load(folder, image_size=size)
    expected = (size, size) if isinstance(size, int) else size
    assert loaded.config.image_size == expected
    with pytest.warns(ResampledNotice):
        model.resize(size)
    images = torch.randn(1, 3, *expected)
    assert torch.equal(loaded(images), model(images))


def test_half_precision_is_the_last_step(model: Backbone, folder: Path) -> None:
    with pytest.warns(ResampledNotice):
        loaded = vitrail.load(folder, image_size=64, dtype=torch.bfloat16)
        model.resize(64)
    assert torch.equal(loaded.position[0].table, model.position[0].table.bfloat16())


def test_a_name_that_is_no_model(folder: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'vit_tiny_patch16'"):
        vitrail.load(folder, model="vit_tiny_patch17")


@pytest.mark.parametrize("to", ["vitrail", "timm", "hf"])
def test_converted_there_and_back(to: str, model: Backbone, folder: Path, tmp_path: Path) -> None:
    file = vitrail.convert(folder, tmp_path / "there", to=to)
    assert file == tmp_path / "there" / "model.safetensors"
    assert isinstance(json.loads((tmp_path / "there" / "config.json").read_text()), dict)
    vitrail.convert(tmp_path / "there", tmp_path / "back", to="vitrail")
    back = vitrail.load(tmp_path / "back")
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert relative_error(model(images), back(images)) < 1e-5
    if to != "timm":  # timm's config.json has a place for them that is optional
        assert back.labels == model.labels


def test_convert_can_change_the_head_and_the_size(folder: Path, tmp_path: Path) -> None:
    with pytest.warns() as caught:
        vitrail.convert(folder, tmp_path / "out", to="hf", num_classes=5, image_size=64)
    assert {type(warning.message) for warning in caught} == {HeadNotice, ResampledNotice}
    loaded = vitrail.load(tmp_path / "out")
    assert (loaded.config.num_classes, loaded.config.image_size) == (5, (64, 64))


def test_convert_to_nobody(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot convert to 'tim'; did you mean 'timm'"):
        vitrail.convert(folder, tmp_path, to="tim")


def test_a_checkpoint_of_a_later_version_says_so(model: Backbone, tmp_path: Path) -> None:
    from vitrail.files import digest, write_tensors
    from vitrail.models.checkpoint.vitrail import describe_model

    for about, message in (
        ({"family": "vitz"}, "vitz"),
        ({"config": {"dim": 3, "spin": 1}, "version": "9.9"}, "was saved by vitrail 9.9; this is .*spin"),
    ):
        header = json.dumps({**describe_model(model), **about})
        metadata = {"vitrail": f"{digest(header, model.state_dict())} {header}"}
        write_tensors(tmp_path / "later.safetensors", model.state_dict(), metadata)
        with pytest.raises(CheckpointError, match=message):
            vitrail.load(tmp_path / "later.safetensors")


def test_a_plain_state_dict_of_ours_needs_its_name(model: Backbone, tmp_path: Path) -> None:
    whole = vitrail.create("vit32_small", num_classes=3).eval()
    torch.save(whole.state_dict(), tmp_path / "plain.pth")
    with pytest.raises(CheckpointError, match="name the model"):
        vitrail.load(tmp_path / "plain.pth")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(vitrail.load(tmp_path / "plain.pth", model="vit32_small")(images), whole(images))
    with pytest.raises(CheckpointError, match="does not fit"):
        vitrail.load(tmp_path / "plain.pth", model="vit_tiny_patch16")


def test_a_conversion_that_does_not_read_back_is_an_error(folder: Path, tmp_path: Path, monkeypatch) -> None:
    from vitrail.models import checkpoint

    def careless(file, tensors, metadata, *, config) -> None:
        write(file, tensors | {"blocks.0.norm1.bias": tensors["blocks.0.norm2.bias"] + 1}, metadata, config=config)

    write = checkpoint.write_tensors
    monkeypatch.setattr(checkpoint, "write_tensors", careless)
    with pytest.raises(CheckpointError, match=r"blocks\.0\.norm1\.bias"):
        vitrail.convert(folder, tmp_path / "out", to="timm")


def test_a_wrapped_model_is_saved_as_itself(model: Backbone, tmp_path: Path) -> None:
    for wrapped in (torch.compile(model, backend="eager"), torch.nn.DataParallel(model)):
        vitrail.save(wrapped, tmp_path / "inside")
        assert vitrail.load(tmp_path / "inside").config == model.config
    with pytest.raises(ConfigError, match="not a Linear"):
        vitrail.save(torch.nn.Linear(1, 1), tmp_path / "no")
    with pytest.raises(ConfigError, match=r"\.pt"):
        vitrail.save(model, tmp_path / "best.pt")


def test_a_name_that_the_tensors_contradict(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"dim is 32, not 1024; depth is 2, not 24"):
        vitrail.load(folder, model="vit_large_patch16")


def test_of_two_sets_of_weights_the_averaged_one_is_taken_and_said(model: Backbone, tmp_path: Path) -> None:
    averaged = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    torch.save({"model": model.state_dict(), "model_ema": averaged}, tmp_path / "run.pth")
    with pytest.warns(ChosenNotice, match="model_ema was taken"):
        loaded = vitrail.load(tmp_path / "run.pth", model=model.config)
    assert torch.equal(loaded.norm.bias, model.norm.bias + 1)


def test_whole_numbers_are_no_weights(model: Backbone, tmp_path: Path) -> None:
    state = model.state_dict() | {"norm.bias": torch.zeros(32, dtype=torch.int8)}
    torch.save(state, tmp_path / "int8.pth")
    with pytest.raises(CheckpointError, match=r"misshaped \(1\): norm\.bias \(32,\) of torch\.int8"):
        vitrail.load(tmp_path / "int8.pth", model=model.config)


@pytest.mark.parametrize("position", ["rope", "sincos2d", "relative"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_meta_model_can_be_filled(position: str, assign: bool) -> None:
    whole = vitrail.create("vit_tiny_patch16", **TINY, position=position).eval()
    with torch.device("meta"):
        empty = vitrail.create("vit_tiny_patch16", **TINY, position=position).eval()
    filled = empty if assign else empty.to_empty(device="cpu")
    filled.load_state_dict(whole.state_dict(), assign=assign)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(filled.features(images).patches, whole.features(images).patches)


@pytest.mark.parametrize("named", [None, "vit_tiny_patch16"])
def test_the_caller_says_which_rectangle_positions_are(named: str | None, tmp_path: Path) -> None:
    from support.peers import timm

    theirs = timm.create_model("vit_tiny_patch16_224", depth=12, img_size=(192, 672), num_classes=2).eval()
    torch.save(theirs.state_dict(), tmp_path / "wide.pth")
    with pytest.raises(CheckpointError, match="image_size"):
        vitrail.load(tmp_path / "wide.pth", model=named)
    ours = vitrail.load(tmp_path / "wide.pth", model=named, image_size=(192, 672))
    images = torch.randn(1, 3, 192, 672)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)


def test_a_rectangle_with_a_class_token_is_not_taken_for_a_square_without_one(tmp_path: Path) -> None:
    from support.peers import timm

    theirs = timm.create_model("vit_tiny_patch16_224", img_size=(64, 96), num_classes=2).eval()  # 4 x 6 + 1 = 5 x 5
    torch.save(theirs.state_dict(), tmp_path / "wide.pth")
    ours = vitrail.load(tmp_path / "wide.pth", image_size=(64, 96))
    images = torch.randn(1, 3, 64, 96)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)


def test_an_image_size_that_is_not_one_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    vitrail.save(vitrail.create("vit_tiny_patch16", depth=1), tmp_path)
    with pytest.raises(ConfigError, match="image_size"):
        vitrail.load(tmp_path, image_size=(1, 2, 3))  # type: ignore[arg-type]
