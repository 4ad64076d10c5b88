"""Tables: CSV and JSONL, one label or several, splits, and slips that must not pass in silence."""

import json

import pytest
from PIL import Image

from vitrail.data.table import read_table
from vitrail.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "img").mkdir()
    for number in range(4):
        Image.new("L", (3, 2), 10 * number).save(tmp_path / "img" / f"{number}.png")
    return tmp_path


def csv(folder, text, name="table.csv"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def jsonl(folder, *rows):
    return csv(folder, "\n".join(json.dumps(row) for row in rows), "table.jsonl")


def test_one_label(folder):
    found = read_table(csv(folder, "path,label,width\nimg/0.png,dog,3\nimg/1.png,cat,3\n\nimg/2.png,dog,3\n"))
    assert found.train.classes == ("cat", "dog")
    assert found.train.labels.tolist() == [1, 0, 1]
    assert found.train.read(1).tolist() == [[[10] * 3] * 2]
    assert found.train.key(1) == "img/1.png"
    assert "not used: width" in found.notes[1]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_quotes_and_byte_order_mark(folder, delimiter):
    text = '\ufeffImage;Class\n"img/0.png";"a, or ""b"""\nimg/1.png;c\n'.replace(";", delimiter)
    found = read_table(csv(folder, text))
    assert found.train.classes == ('a, or "b"', "c")


def test_numbers_are_classes_in_their_order(folder):
    found = read_table(csv(folder, "file,label\nimg/0.png,10\nimg/1.png,9\nimg/2.png,2\n"))
    assert found.train.classes == ("2", "9", "10")


def test_several_labels(folder):
    found = read_table(csv(folder, "path,labels\nimg/0.png,red|round\nimg/1.png,\nimg/2.png,round\n"))
    assert found.train.multi_label
    assert found.train.classes == ("red", "round")
    assert found.train.labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    again = read_table(
        jsonl(
            folder,
            {"path": "img/0.png", "labels": ["red", "round"]},
            {"path": "img/1.png", "labels": []},
            {"path": "img/2.png", "labels": "round"},
        )
    )
    assert again.train.labels.tolist() == found.train.labels.tolist()


def test_columns_of_zeros_and_ones(folder):
    several = read_table(csv(folder, "path,red,round\nimg/0.png,1,1\nimg/1.png,0,0\n"))
    assert several.train.labels.tolist() == [[1, 1], [0, 0]]
    one = read_table(csv(folder, "path,red,round\nimg/0.png,0,1\nimg/1.png,1,0\n"))
    assert one.train.labels.tolist() == [1, 0]
    assert "one label each" in one.notes[0]


def test_split_column(folder):
    rows = "img/0.png,a,train\nimg/1.png,b,Training\nimg/2.png,a,validation\nimg/3.png,b,test\n"
    found = read_table(csv(folder, f"path,label,split\n{rows}"))
    assert [len(part) for part in (found.train, found.val, found.test)] == [2, 1, 1]
    assert found.test.where(0).endswith("3.png")


def test_absolute_paths(folder, tmp_path_factory):
    file = tmp_path_factory.mktemp("elsewhere") / "t.csv"
    file.write_text(f"path,label\n{folder}/img/0.png,a\n{folder}/img/1.png,b\n")
    assert read_table(file).train.read(1).max() == 10


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        (
            "labels",
            ("red", "blue", "red;blue"),
            r"line 4: labels are joined by \|; 'red;blue' would be one class: .* ; by",
        ),
        ("labels", ("red", '"red, blue"', "blue"), r"line 3: .*'red, blue' would be one class: replace , by \|"),
        ("tags", ("clear road", "haze road", "haze clear"), "'clear road' would be one class: replace the spaces by"),
        ("label", ("red", "blue", "red|blue"), r"line 4: label is one class an image, and 'red\|blue'.* column labels"),
        ("class", ("red", "blue", "red;blue"), "class is one class an image, and 'red;blue'.* a name without ;"),
        ("label", ("red", "blue", "red/blue"), "label is one class an image, and 'red/blue'.* a name without /"),
        (
            "labels",
            ("red", "\"['red', 'short']\""),
            r"line 3: labels holds a list written as text, \['red', 'short'\]; write names joined by \| .* \.jsonl",
        ),
        ("labels", ("red", "[]"), r"line 3: labels holds a list written as text, \[\]"),
        ("labels", ('"[""red""]"',), r'a list written as text, \["red"\]'),
        ("labels", ("[3 17]", "3"), r"a list written as text, \[3 17\]"),
        (
            "label",
            ("\"('red',)\"", "red"),
            r"line 2: label is one class an image, but this is a list: \('red',\); .* \|",
        ),
    ],
)
def test_several_labels_never_become_one_class(folder, column, cells, message):
    text = f"path,{column}\n" + "".join(f"img/{number}.png,{cell}\n" for number, cell in enumerate(cells))
    with pytest.raises(DataError, match=message):
        read_table(csv(folder, text))


def test_a_name_with_a_comma_is_one_class_and_told(folder):
    text = 'path,label\nimg/0.png,"Paris, France"\nimg/1.png,"Lyon, France"\nimg/2.png,Rome\n'
    found = read_table(csv(folder, text))
    assert found.train.classes == ("Lyon, France", "Paris, France", "Rome")
    assert (
        "Each of these is one class, in spite of the marks in its name: 'Lyon, France', 'Paris, France'." in found.notes
    )


def test_a_name_in_brackets_is_a_name(folder):
    found = read_table(csv(folder, "path,labels\nimg/0.png,[unknown]|red (dark)\nimg/1.png,(none)\n"))
    assert found.train.classes == ("(none)", "[unknown]", "red (dark)")


def test_a_class_made_of_others_is_told(folder):
    found = read_table(csv(folder, "path,label\nimg/0.png,red short\nimg/1.png,red\nimg/2.png,short\n"))
    assert found.train.classes == ("red", "red short", "short")
    assert found.notes[1].startswith(
        "Each of these is one class, though all its words are classes too: 'red short'; if"
    )


@pytest.mark.parametrize(
    ("column", "cells", "told"),
    [
        ("label", ("red", "blue", "blue"), "2, such as ./img/0.png, which is 'red' in line 2 and 'blue' in line 3;"),
        ("label", ("red", "red", "red"), None),
        ("labels", ("red|blue", "blue|red", "red"), "1, such as img/0.png, which is 'blue|red' in line 2 and 'red' in"),
    ],
)
def test_an_image_with_two_labels_in_two_lines_is_told(folder, column, cells, told):
    rows = zip(("img/0.png", "./img/0.png", "img/0.png", "img/1.png"), (*cells, "blue"), strict=True)
    notes = read_table(csv(folder, f"path,{column}\n" + "\n".join(map(",".join, rows)))).notes[1:]
    start = "Images that occur again with another label: "
    assert [note.startswith(f"{start}{told}") for note in notes] == ([] if told is None else [True])


def test_a_list_means_what_it_says(folder):
    names = ["red", "blue", "red, blue"]
    found = read_table(jsonl(folder, *({"path": f"img/{i}.png", "labels": [name]} for i, name in enumerate(names))))
    assert found.train.classes == ("blue", "red", "red, blue")
    assert "'red, blue'" in found.notes[1]
    assert "Every image has one label" in found.notes[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("path,label\n", "has no rows"),
        ("pth,label\nimg/0.png,a\n", "no column of image paths, only pth, label; 'pth': did you mean 'path'"),
        ("path,lable\nimg/0.png,a\n", "no label column.* line 2 has lable='a'; 'lable': did you mean 'label'"),
        ("path,label,splitt\nimg/0.png,a,val\n", "unknown column 'splitt'; did you mean 'split'"),
        ("path,label,labels\nimg/0.png,a,a\n", "both a column 'label' and a column 'labels'"),
        ("path\nimg/0.png\n", "has no labels"),
        ("path,path\nimg/0.png,a\n", "two columns of one name"),
        ("path,label\nimg/0.png,a\nimg/1.png\n", "line 3: 1 cells, but 2 columns"),
        ("path,label\nimg/0.png,\n", "line 2: label is ''; it must be a text"),
        ("path,label\nimg/0.png,-1\n", "line 2: label is -1; labels count from 0"),
        ("path,label,split\nimg/0.png,a,trian\n", "line 2: split is 'trian', no split; did you mean 'train'"),
        ("path,label,split\nimg/0.png,a,val\n", "no row whose split is train"),
        ("path,label\nother/0.png,a\nother/1.png,b\n", "no image of the first 2 rows exists.* relative to the table"),
        ('path,label\n"img/0.png,a\n', "line 2"),
    ],
)
def test_bad_tables_get_one_sentence(folder, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read_table(csv(folder, text))
    assert "table.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 1: no JSON \(Expecting property name enclosed in double quotes, column 2\)"),
        ('{"label": ' + "9" * 5000 + "}", "line 1: no JSON"),
        ("[1]", "line 1: an object with a path"),
        ('{"path": "img/0.png", "labels": 3}', "must be a list"),
        ('{"path": "img/0.png", "label": null}', "label is None"),
        ('{"path": "img/0.png", "label": ["a"]}', "one class an image, but this is a list: .* column labels"),
        ('{"path": "img/0.png", "labels": [true]}', "labels is True"),
    ],
)
def test_bad_jsonl_names_the_line(folder, line, message):
    with pytest.raises(DataError, match=message):
        read_table(csv(folder, line, "table.jsonl"))


def test_not_utf8(folder):
    file = folder / "t.csv"
    file.write_bytes(b"path,label\nimg/\xff.png,a\n")
    with pytest.raises(DataError, match="cannot be read as UTF-8"):
        read_table(file)
