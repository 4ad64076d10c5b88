"""Names of models in titles."""

import re

from support.registered import tiny

import vitrail
from vitrail.training.report import name_model


def test_a_model_is_called_by_its_size_where_options_changed_it():
    options = {"dim": 32, "depth": 1, "num_heads": 2, "patch": {"kind": "conv", "halvings": 3}, "class_token": False}
    options["pool"] = "mean"
    title, sentence = name_model("vit_tiny_patch16", options, tiny(num_classes=5, **options))
    assert re.fullmatch(r"ViT of [\d.]+ [kM] parameters", title)
    assert sentence == (
        "The model is vit_tiny_patch16 with dim 32, depth 1, num_heads 2, patch conv (halvings 3), class_token no, "
        "pool mean."
    )
    assert name_model("vit_tiny_patch16", {"image_size": 32}, tiny())[0] == "vit_tiny_patch16"


def test_options_that_leave_the_size_leave_the_name():
    model = vitrail.create("vit_tiny_patch16", image_size=32, num_classes=3, drop_path=0.1)
    assert name_model("vit_tiny_patch16", {"drop_path": 0.1}, model) == ("vit_tiny_patch16", "")


def test_a_head_beside_the_model_is_named_with_its_size():
    head = vitrail.create("vit_tiny_patch16", image_size=32, num_classes=3)
    assert name_model("resnet18", {}, tiny(), head)[0].startswith("resnet18 with ViT of 5.4")
