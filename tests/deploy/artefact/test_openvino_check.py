"""An OpenVINO IR has layers of its own opsets, and constants within its .bin."""

import shutil

import pytest

from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.artefact.openvino_check import check_openvino
from vitrail.errors import CheckpointError

BOMB = '<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'


@pytest.fixture
def path(shipped, tmp_path):
    for name in ("model.xml", "model.bin"):
        shutil.copy(shipped[0] / name, tmp_path / name)
    return tmp_path / "model.xml"


def refused(path, text, word):
    path.write_text(text)
    with pytest.raises(CheckpointError, match=word):
        open_engine(path)


def test_what_vitrail_writes_is_read(shipped):
    for name in ("model.xml", "model.int8.xml"):
        path = shipped[0] / name
        assert '"task"' in check_openvino(path.read_bytes(), path)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("<net ", f"{BOMB}<net ", "entities"),
        ("<net ", "<!DOCTYPE net SYSTEM 'file:///etc/passwd'><net ", "document type"),
        ('version="opset1"', 'version="mine"', "mine"),
        ('version="opset1"', 'version="extension"', "extension"),
        ('offset="0"', 'offset="99999999999"', "after the end"),
        ('offset="0"', 'offset="-8"', "whole number"),
        ('size="128"', 'size="many"', "whole number"),
        ('type="Const"', 'type="Loop"', "Loop"),
        ('type="Const"', 'type="ReadValue"', "ReadValue"),
        ('type="Const"', 'kind="Const"', "layer"),
        ('offset="0"', 'offset="1_0"', "whole number"),
        ('shape="1, 32"', 'shape="1, -32"', "shape"),
        ("<net ", "<a>" * 500 + "<net ", "begins|deep"),
        ("</net>", "", "element"),
    ],
)
def test_anything_else_is_refused(path, old, new, word):
    text = path.read_text()
    assert old in text
    refused(path, text.replace(old, new, 1), word)


def test_weights_are_a_file_beside_it(path, tmp_path):
    text, weights = path.read_text(), path.with_suffix(".bin")
    weights.rename(tmp_path / "elsewhere")
    refused(path, text, "beside")
    weights.symlink_to(tmp_path / "elsewhere")
    refused(path, text, "beside")


def test_cut_weights_are_refused(path):
    path.with_suffix(".bin").write_bytes(path.with_suffix(".bin").read_bytes()[:-1])
    refused(path, path.read_text(), "after the end")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "cp037"])
def test_only_utf8_is_read(path, encoding):
    text = path.read_text().replace("<net ", "<!-- \xe9 --><net ", 1)
    path.write_bytes(text.encode(encoding))
    with pytest.raises(CheckpointError, match=r"utf-8|UTF-8"):
        open_engine(path)


def test_an_encoding_that_a_file_names_hides_nothing(path):
    # In it, the bytes of one letter are also the beginning of a comment, of which a reader of UTF-8 knows nothing.
    layer = b'<layer id="9" name="x" type="Loop" version="opset1"/>'
    text = path.read_bytes().partition(b"?>")[2].replace(b"<layers>", b"<layers>\xf0\xbc\xa1\xad-" + layer + b"-->", 1)
    path.write_bytes(b'<?xml version="1.0" encoding="mac_arabic"?>' + text)
    with pytest.raises(CheckpointError, match="Loop"):
        open_engine(path)
