"""The command line: one verb a function, each importing what it needs when it runs, so that --help is instant."""

import argparse
import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.cli import (
    advise_verb,
    compare_verb,
    explain_verb,
    folds_verb,
    lab_verb,
    learning,
    probe_verb,
    serving,
    shipping,
    showing,
    tuning_verb,
    uneven,
)
from vitrail.cli.collector import end_at_once
from vitrail.cli.options import DEVICES, Words, check_paths, escape_letters, image_size, notices
from vitrail.errors import VitrailError
from vitrail.printable import printable_output

EXAMPLES = """examples:
  vitrail doctor photos/
  vitrail advise photos/ --device cpu --latency 20ms
  vitrail train photos/ --model vit_small_patch16
  vitrail train cifar10 --recipe cifar10-small
  vitrail predict cat.jpg
  vitrail predict runs/my-run cat.jpg --top 5
  vitrail compare runs/a runs/b --html compare.html
  vitrail explain runs/my-run cat.jpg --target cat --out cat.html
  vitrail probe runs/my-run photos/ --out probe.html
  vitrail export runs/my-run --to onnx,openvino --out dist/
  vitrail bench dist/ runs/my-run
  vitrail serve runs/my-run --port 8080
  vitrail info vit_base_patch16 --image-size 384 --num-classes 10
  vitrail convert hf-hub:facebook/dinov2-small my-model
  vitrail verify runs/my-run
  vitrail lab temperature --quick --out temperature.html
"""

OUT_OF_MEMORY = (  # what RuntimeErrors say of it; the last one is oneDNN's
    "out of memory", "not enough memory", "allocate memory", "can't start new thread", "could not create a primitive",
)  # fmt: skip
UNWRITABLE = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT)  # what a person can do something about


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; an error that is the user's becomes one sentence and exit code 2."""
    escape_letters()
    end_at_once()
    with printable_output():
        return _answered(arguments)


def _answered(arguments: Sequence[str] | None) -> int:
    try:
        options = parser().parse_args(arguments)
        with notices():
            check_paths(options)
            options.run_verb(options)
    except VitrailError as error:
        print(f"vitrail: error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except BrokenPipeError:
        sys.stderr.close()  # the reader left, e.g. `vitrail models | head`
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error
        way = "; free some space, check its permissions, or choose another path" if error.errno in UNWRITABLE else ""
        print(f"vitrail: error: {text}{way}", file=sys.stderr)  # noqa: T201
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        text = f"not enough memory ({str(error) or 'out of memory'})"
        way = "use smaller images or batches, or a machine with more; a run can be resumed, a table continued"
        print(f"vitrail: error: {text}; {way}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error, of Python, torch or the system, means that there is too little memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    top = Words(
        prog="vitrail",
        description="Vision transformers: from a folder of images to a trained model.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"vitrail {__version__}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)
    _train(_verb(verbs, "train", learning.train, "train a model on images, or resume a run"))
    _judging(verbs)
    text = "advise on model, weights, recipe and export for your data, from measured rows"
    verb = _verb(verbs, "advise", advise_verb.advise, text)
    advise_verb.add_options(verb)
    _output_options(verb)
    text = "compare runs of one task: settings, curves, whether the difference is real, and cost"
    verb = _verb(verbs, "compare", compare_verb.compare, text)
    compare_verb.add_options(verb)
    _output_options(verb)
    text = "explain predictions: attention, saliency maps, and how faithful they are"
    explain_verb.add_options(_verb(verbs, "explain", explain_verb.explain, text))
    text = "linear and nearest-neighbour probes of every layer of a model"
    probe_verb.add_options(_verb(verbs, "probe", probe_verb.probe, text))
    text = "claims of textbooks about vision transformers as experiments, each with a verdict"
    lab_verb.add_options(_verb(verbs, "lab", lab_verb.lab, text))
    _showing(verbs)
    text = "write a model as torch.export, ONNX or OpenVINO files with a certificate, in int8 too"
    shipping.add_export(_verb(verbs, "export", shipping.export, text))
    shipping.add_bench(_verb(verbs, "bench", shipping.bench, "measure artefacts and runs side by side on this machine"))
    serving.add_serve(_verb(verbs, "serve", serving.serve, "serve a model over HTTP, with a page to try it"))
    _demo(_verb(verbs, "demo", learning.demo, "train a small ViT on embedded images in two minutes, with a report"))
    return top


def _verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> Words:
    verb: Words = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    verb.set_defaults(run_verb=run)
    return verb


def _train(verb: Words) -> None:
    verb.sets_recipe = True
    verb.add_argument(
        "data", nargs="?",
        help="a folder of images (class = folder; or boxes, masks, depth), CSV/JSONL, arrays, shards, or cifar10 …",
    )  # fmt: skip
    verb.add_argument(
        "--model", metavar="NAME", help="a model of `vitrail models`; chosen by the images' size if left out"
    )
    verb.add_argument(
        "--task", metavar="KIND", help="classify, detect, mae ...; inferred if left out; several heads: detect,depth"
    )
    verb.add_argument("--label", metavar="COLUMN", help="the column of a table with the target; several: a,b")
    verb.add_argument("--recipe", metavar="NAME", help="a recipe of the package, or a YAML file")
    verb.add_argument(
        "--from",
        metavar="WEIGHTS",
        dest="start",
        help="weights to fine-tune: a file, folder or hf-hub:…; auto: public ones for the images' size",
    )
    verb.add_argument("--teacher", metavar="WEIGHTS", help="a model to learn from as well")
    verb.add_argument(
        "--val", metavar="SHARE|DATA", type=_share, help="validation: a share of the images, or other data"
    )
    folds_verb.add_options(verb)
    tuning_verb.add_options(verb)
    uneven.add_options(verb)
    verb.add_argument("--out", metavar="FOLDER", type=Path, dest="folder", help="where the run goes (default runs/…)")
    verb.add_argument("--resume", metavar="FOLDER", type=Path, help="resume a run; the result is the same bit by bit")
    verb.add_argument(
        "--verify-resume", metavar="N", type=int, help="check on N steps that resuming is exact, and exit"
    )
    verb.add_argument("--epochs", type=int, help="how often every image is seen (default: the recipe's)")
    verb.add_argument("--batch-size", type=int, help="images a step, over all processes (default: the recipe's)")
    verb.add_argument("--lr", type=float, help="the learning rate (default: the recipe's)")
    verb.add_argument("--layer-decay", metavar="RATE", type=float, help="lower rates towards the image, e.g. 0.75")
    verb.add_argument("--freeze-until", metavar="LAYER", help="freeze everything before it, e.g. blocks.8")
    verb.add_argument("--lora", metavar="RANK", type=int, help="train low-rank updates and the head only")
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="224, or height x width: 224x160")
    verb.add_argument("--seed", type=int, help="decides the weights, the order and the augmentation (default 0)")
    verb.add_argument("--precision", help="auto, float32 (or fp32), bf16, fp16 or fp8 (linear maps in 8 bits)")
    verb.add_argument("--compile", action="store_true", help="torch.compile: slow to start, faster after")
    verb.add_argument("--device", help=DEVICES)
    verb.add_argument("--shard", choices=("ddp", "fsdp"), default="ddp", help="how several processes share the model")
    verb.add_argument(
        "--log", metavar="SINK", action="append", default=[], choices=("tensorboard", "wandb"),
        help="also log to tensorboard (RUN/tensorboard) or wandb; may be given twice",
    )  # fmt: skip
    _set_option(verb, "change the recipe, e.g. --set mix.cutmix=1.0 --set options.drop_path=0.1")


def _demo(verb: Words) -> None:
    verb.sets_recipe = True
    verb.add_argument(
        "--out", metavar="FOLDER", type=Path, dest="folder",
        help="where the run goes (default runs/demo, where it replaces the last)",
    )  # fmt: skip
    verb.add_argument("--device", help=DEVICES)
    _set_option(verb, "change the recipe, e.g. --set epochs=5")


def _judging(verbs: Any) -> None:
    about = "evaluate a model on labelled images: metrics, intervals, mistakes, speed"
    verb = _verb(verbs, "eval", learning.evaluate, about)
    verb.add_argument("run", help="a run, any checkpoint that `vitrail info` reads, an exported model, or `packaged`")
    verb.add_argument("data", nargs="?", help="labelled images, as for train, their test part; by default the run's")
    verb.add_argument("--label", metavar="COLUMN", help="the column of a table with the target")
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="other than the model's: 384, or 224x160")
    verb.add_argument("--batch-size", type=int, default=256, help="images at a time (default 256)")
    verb.add_argument("--precision", choices=("float32", "bf16", "fp8"), default="float32", help="of the model")
    verb.add_argument("--device", help=DEVICES)
    verb.add_argument(
        "--tta", choices=("flip", "views"), help="also average over test-time views: flips, or crops and flips"
    )
    _output_options(verb)

    verb = _verb(verbs, "predict", learning.predict, "predict for image files, folders and tables of them")
    verb.usage = (
        "vitrail predict [-h] [--image-size SIZE] [--top TOP] [--device DEVICE] [--json] [--draw FILE|FOLDER] "
        "[--tile PIXELS] [--out FILE|FOLDER] [--ray WORKERS] [RUN] PATH [PATH ...]"
    )
    verb.add_argument(
        "paths", nargs="+", metavar="PATH",
        help="image files and folders; before them a run's folder, any checkpoint or an exported model; by default "
        "the packaged model",
    )  # fmt: skip
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="other than the model's: 384, or 224x160")
    verb.add_argument("--top", type=int, default=5, help="how many candidates to name (default 5)")
    verb.add_argument("--device", help=DEVICES)
    verb.add_argument("--json", action="store_true", help="one JSON object a line")
    shipping.add_positions(verb)
    shipping.add_table(verb)

    verb = _verb(verbs, "doctor", learning.doctor, "audit images before training")
    verb.add_argument("data", help="what you would train on")
    verb.add_argument("--label", metavar="COLUMN", help="the column of a table with the target")
    verb.add_argument(
        "--model",
        metavar="NAME",
        help="the model to estimate costs for; by default the one that train would choose",
    )
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="the run's: 224, or 224x160")
    verb.add_argument("--val", metavar="SHARE|DATA", type=_share, help="validation, as for train")
    verb.add_argument("--group", metavar="RULE", help="how images are grouped, as for train")
    verb.add_argument("--seed", type=int, default=0, help="the run's: it decides which images validate it")
    verb.add_argument(
        "--preview", metavar="FILE", type=Path, help="write an HTML page of pictures with their boxes, masks or depth"
    )
    _output_options(verb)


def _showing(verbs: Any) -> None:
    verb = _verb(
        verbs, "models", showing.models, "list the models: parameters, GMACs, image size, and which weights fit"
    )
    verb.add_argument(
        "pattern", nargs="?", default="*", help="a name, part of one, or a pattern such as 'vit_*_patch16'"
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of a table")
    verb.add_argument("--page", type=Path, metavar="DOCS", help="write models.md with a picture of every family there")

    verb = _verb(verbs, "info", showing.info, "describe a model layer by layer: parameters, MACs, activation memory")
    verb.add_argument(
        "model", help="a model's name, a weight file or folder, `packaged`, or hf-hub:owner/name[@revision]"
    )
    _size_options(verb)
    _set_option(verb, "change the config, e.g. --set position=rope --set attention.qk_norm=true")
    verb.add_argument("--batch", type=int, default=1, help="images in the batch that is counted (default 1)")
    _output_options(verb)

    text = "time and memory of each part of a training step on this machine, beside the least that it could need"
    verb = _verb(verbs, "profile", showing.profile, text)
    verb.add_argument("model", help="a model of `vitrail models`")
    verb.add_argument("--batch", type=int, default=16, help="images of a step (default 16)")
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="224, or height x width: 224x160")
    verb.add_argument("--precision", default="auto", help="auto, float32, bf16 or fp16")
    verb.add_argument("--rounds", type=int, default=5, help="steps that are timed (default 5)")
    verb.add_argument("--device", help="cpu, cuda, cuda:1, mps")
    _output_options(verb)

    text = "say what a run, checkpoint, exported model, pack or table of predictions is, and whether it is complete"
    verb = _verb(verbs, "verify", showing.verify, text)
    verb.add_argument("path", help="a file or folder, or `packaged`; nothing is loaded, so it may be from anywhere")
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--accept", action="store_true", help="first write new checksums: files were edited on purpose")

    verb = _verb(verbs, "convert", showing.convert, "rewrite a checkpoint for vitrail, timm or Hugging Face")
    verb.add_argument(
        "source", help="a weight file or folder of vitrail, timm, Hugging Face or torchvision, `packaged`, or hf-hub:…"
    )
    verb.add_argument("out", type=Path, help="the folder to write")
    verb.add_argument("--to", choices=("vitrail", "timm", "hf"), default="vitrail", help="for whom (default vitrail)")
    verb.add_argument("--model", metavar="NAME", help="the model's name, where the file alone does not tell it")
    _size_options(verb)


def _size_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="384, or height x width: 224x160")
    verb.add_argument("--num-classes", metavar="K", type=int, help="classes of the head; 0 for none")


def _set_option(verb: argparse.ArgumentParser, text: str) -> None:
    verb.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="changes", help=text)


def _output_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--html", metavar="FILE", type=Path, help="also write one self-contained HTML page")


def _share(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
