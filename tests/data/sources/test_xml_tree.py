"""XML is read with line numbers, within limits, and without entities."""

import pytest

from vitrail.data.sources import xml_tree
from vitrail.data.sources.xml_tree import read_xml
from vitrail.errors import DataError

BOMB = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><a>&y;</a>'
FILE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'


def test_words_and_lines(tmp_path):
    (tmp_path / "a.xml").write_text("<a>\n<b> one </b>\n<b>two</b><c><d>3</d></c></a>")
    found = read_xml(tmp_path / "a.xml")
    assert [(child.name, child.line) for child in found.children] == [("b", 2), ("b", 3), ("c", 3)]
    assert found.word("b") == "one"
    assert found.word("c", "d") == "3"
    assert found.word("c", "e") == ""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (BOMB, "document type"),
        (FILE, "document type"),
        ("<a><b></a>", "mismatched"),
        ("", "no element"),
        ("<a>&nothing;</a>", "entity"),
        ("<a>" * 40, "inside"),
        ("\0\1\2", "valid XML"),
        ('<?xml version="1.0" encoding="klingon"?><a/>', "valid XML"),
    ],
)
def test_what_is_not_plain_xml_is_refused(tmp_path, text, word):
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(DataError, match=word):
        read_xml(tmp_path / "a.xml")


def test_large_files_and_folders_are_refused(tmp_path, monkeypatch):
    (tmp_path / "a.xml").write_text("<a>" + " " * 100 + "</a>")
    monkeypatch.setattr(xml_tree, "LIMIT", 50)
    with pytest.raises(DataError, match="larger"):
        read_xml(tmp_path / "a.xml")
    with pytest.raises(DataError, match="cannot be read"):
        read_xml(tmp_path)
