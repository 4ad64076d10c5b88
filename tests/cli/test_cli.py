"""The command line, as a person types it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import processes

import vitrail
from vitrail.cli import main, parser
from vitrail.cli.options import escape_letters


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "vitrail"), *words]
    return processes.run(command)


def test_help_is_instant_and_does_not_load_torch() -> None:
    taken = []
    for _ in range(3):
        before = os.times()
        done = _run("--help")
        taken.append(sum(os.times()[2:4]) - sum(before[2:4]))  # processor time of children: others may be busy, too
    assert done.returncode == 0
    for verb in ("models", "info", "convert", "demo"):
        assert verb in done.stdout
    assert min(taken) < 0.3
    code = "import sys, vitrail.cli; vitrail.cli.parser().format_help(); assert 'torch' not in sys.modules"
    done = processes.run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_every_option_has_a_help_text() -> None:
    (verbs,) = (action for action in parser()._actions if isinstance(action.choices, dict))
    for name, verb in dict(verbs.choices or {}).items():
        assert [action.dest for action in verb._actions if not action.help] == [], name


def test_models_lists_what_matches_with_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit_base_patch*6", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["parameters"], row["image_size"]) == ("vit_base_patch16", 86_567_656, [224, 224])
    assert row["macs"] == pytest.approx(17.56e9, rel=1e-3)
    assert main(["models", "vit32"]) == 0
    text = capsys.readouterr().out
    assert [word in text for word in ("5.36 M", "21.34 M", "75.72 M")] == [True] * 3


def test_info_takes_sizes_and_changes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["info", "vit_tiny_patch16", "--image-size", "64x32", "--num-classes", "7"]
    words += ["--set", "position=rope", "--set", "attention.qk_norm=true", "--json", "--html", str(page)]
    assert main(words) == 0
    text = capsys.readouterr().out
    model = vitrail.create("vit_tiny_patch16", image_size=(64, 32), num_classes=7, position="rope",
                           attention={"qk_norm": True})  # fmt: skip
    assert f'"parameters": {sum(p.numel() for p in model.parameters())}' in text
    assert "rope" in text
    assert page.read_text().lower().startswith("<!doctype html>")


def test_info_describes_a_checkpoint_and_says_what_it_did(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = vitrail.create("vit32_small", depth=2, dim=32, num_heads=2, num_classes=3)
    vitrail.save(model, tmp_path / "m.safetensors")
    assert main(["info", str(tmp_path / "m.safetensors"), "--image-size", "64", "--json"]) == 0
    shown = capsys.readouterr()
    assert "64 x 64" in shown.out
    assert shown.err == "vitrail: note: positions resampled from 32 x 32 to 64 x 64 pixels\n"


@pytest.mark.parametrize("to", ["vitrail", "timm", "hf"])
def test_convert_writes_what_can_be_read(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = vitrail.create("vit_tiny_patch16", depth=2, image_size=32, num_classes=5, init="trunc_normal").eval()
    source, out = vitrail.save(model, tmp_path / "a"), tmp_path / "b"
    assert main(["convert", str(source), str(out), "--to", to]) == 0
    assert str(out / "model.safetensors") in capsys.readouterr().out
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(vitrail.load(out)(images), model(images))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["info", "vit_smal_patch16"], "'vit_small_patch16'"),
        (["info", "vit_small_patch16", "--image-size", "100"], "96 x 96"),
        (["info", "vit_small_patch16", "--set", "atention=x"], "'attention'"),
        (["info", "vit_small_patch16", "--set", "depth"], "KEY=VALUE"),
        (["info", "vit_small_patch16", "--set", "=3"], "--set '=3'"),
        (["info", "vit_small_patch16", "--set", "mlp.=3"], "--set 'mlp.=3'"),
        (["info", "vit_small_patch16", "--batch", "few"], "'few'"),
        (["info", "pakaged"], "'packaged'"),
        (["convert", "pakaged", "out"], "'packaged'"),
        (["info", ""], "vitrail info --help"),
        (["info"], "model; see vitrail info --help"),
        (["models", "--page"], "--page: expected one argument"),
        (["models", "--page", ""], "vitrail models --help"),
        (["serve", "packaged", "--max-mb", "nan"], "'nan'"),
        ([""], "bench, "),
        (["models", "swinn"], "'swinn'"),
        (["convert", "nowhere.safetensors", "out"], "nowhere.safetensors"),
        (["convert", "hf-hub:one", "out"], "hf-hub:owner/name"),
    ],
)
def test_a_mistake_gets_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("vitrail: error: ")
    assert says in shown.err


def test_info_knows_the_packaged_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "packaged"]) == 0
    assert capsys.readouterr().out.startswith("ViT: vit32_conv, from packaged\n")


def test_a_file_that_begins_as_options_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-c.pth").touch()
    assert main(["info", "-c.pth"]) == 2
    assert "./-c.pth" in capsys.readouterr().err
    assert main(["info", "--", "-c.pth"]) == 2
    assert "-c.pth" in capsys.readouterr().err


def test_a_name_that_is_no_text_can_be_printed_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    name, printed = os.fsdecode(b"caf\xe9.png"), io.BytesIO()
    for errors in ("strict", "surrogateescape", "replace"):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="utf-8", errors=errors))
        escape_letters()
        print(json.dumps(name, ensure_ascii=False), flush=True)
    first, second, chosen = printed.getvalue().decode().splitlines()
    assert json.loads(first) == json.loads(second) == name
    assert chosen == '"caf?.png"'  # what a person asked for by PYTHONIOENCODING is left alone


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_too_little_memory_is_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr("vitrail.cli.showing.models", fails)
    assert main(["models"]) == 2
    assert "not enough memory" in capsys.readouterr().err
    error = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        main(["models"])


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{Path(sys.executable).parent / 'vitrail'} models vit_tiny | head -1"
    done = processes.run(["bash", "-c", command])
    assert "Traceback" not in done.stderr
