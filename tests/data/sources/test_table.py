"""Tables: CSV and JSONL, labels and numbers, splits, columns by name, and mistakes that must not pass."""

import json

import pytest
from PIL import Image
from support.single_target import classes, labels

from vitrail.data.sources.table import Wanted, read_table
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget
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
    assert classes(found.train) == ("cat", "dog")
    assert labels(found.train).tolist() == [1, 0, 1]
    assert found.train.read(1).tolist() == [[[10] * 3] * 2]
    assert found.train.key(1) == "img/1.png"
    assert "not used: width" in found.notes[1]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_quotes_and_byte_order_mark(folder, delimiter):
    text = '\ufeffImage;Class\n"img/0.png";"a, or ""b"""\nimg/1.png;c\n'.replace(";", delimiter)
    found = read_table(csv(folder, text))
    assert classes(found.train) == ('a, or "b"', "c")


def test_numbers_are_classes_in_their_order(folder):
    found = read_table(csv(folder, "file,label\nimg/0.png,10\nimg/1.png,9\nimg/2.png,2\n"))
    assert classes(found.train) == ("2", "9", "10")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (("red", "blue"), "class"),
        (("red|blue", "blue", "red"), "labels"),
        (("1.5", "3"), "numbers"),
        (("1 2 3 4 red", "1 2 3 4 red; 5 6 7 8 blue"), "boxes"),
        (("img/2.png", "img/3.png"), "mask"),
        (("", "1 2 3 4 red"), "boxes"),
    ],
)
def test_what_a_named_column_holds_follows_from_its_cells(folder, cells, kind):
    rows = [f"img/{number}.png,{cell}" for number, cell in enumerate(cells)]
    file = csv(folder, "\n".join(["path,colour of it", *rows]))
    (target,) = read_table(file, Wanted(columns=("colour of it",))).train.schema.values()
    assert target.kind == kind


def test_named_columns_of_any_name_are_the_targets_of_many_tasks(folder):
    file = csv(folder, "path,age,size,species\nimg/0.png,3,7,dog\nimg/1.png,4,8,cat\n")
    kinds = ("class", "labels", "numbers")
    found = read_table(file, Wanted(columns=("age", "species"), kinds=kinds, several=True)).train.schema
    assert sorted(target.kind for target in found.values()) == ["class", "numbers"]
    with pytest.raises(DataError, match="--task"):
        read_table(file, Wanted(columns=("age", "species")))
    with pytest.raises(DataError, match="both of kind 'numbers'"):
        read_table(file, Wanted(columns=("age", "size"), kinds=kinds, several=True))


def test_several_labels(folder):
    found = read_table(csv(folder, "path,labels\nimg/0.png,red|round\nimg/1.png,\nimg/2.png,round\n"))
    assert isinstance(found.train.schema["labels"], LabelsTarget)
    assert classes(found.train) == ("red", "round")
    assert labels(found.train).tolist() == [[1, 1], [0, 0], [0, 1]]
    again = read_table(
        jsonl(
            folder,
            {"path": "img/0.png", "labels": ["red", "round"]},
            {"path": "img/1.png", "labels": []},
            {"path": "img/2.png", "labels": "round"},
        )
    )
    assert labels(again.train).tolist() == labels(found.train).tolist()


def test_columns_of_zeros_and_ones(folder):
    several = read_table(csv(folder, "path,red,round\nimg/0.png,1,1\nimg/1.png,0,0\n"))
    assert labels(several.train).tolist() == [[1, 1], [0, 0]]
    one = read_table(csv(folder, "path,red,round\nimg/0.png,0,1\nimg/1.png,1,0\n"))
    assert labels(one.train).tolist() == [1, 0]
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
            r"line 4.*'red;blue'.*\|",
        ),
        ("labels", ("red", '"red, blue"', "blue"), r"line 3.*'red, blue'.*\|"),
        ("tags", ("clear road", "haze road", "haze clear"), r"'clear road'.*space"),
        ("label", ("red", "blue", "red|blue"), r"line 4.*'red\|blue'.*labels"),
        ("class", ("red", "blue", "red;blue"), r"'red;blue'.*;"),
        ("label", ("red", "blue", "red/blue"), r"'red/blue'.*/"),
        (
            "labels",
            ("red", "\"['red', 'short']\""),
            r"line 3.*\['red', 'short'\].*\.jsonl",
        ),
        ("labels", ("red", "[]"), r"line 3.*\[\].*list"),
        ("labels", ('"[""red""]"',), r'\["red"\].*list'),
        ("labels", ("[3 17]", "3"), r"\[3 17\].*list"),
        (
            "label",
            ("\"('red',)\"", "red"),
            r"line 2.*list.*\('red',\)",
        ),
    ],
)
def test_several_labels_never_become_one_class(folder, column, cells, message):
    text = f"path,{column}\n" + "".join(f"img/{number}.png,{cell}\n" for number, cell in enumerate(cells))
    with pytest.raises(DataError, match=message):
        read_table(csv(folder, text))


def test_a_name_with_a_comma_is_one_class_and_noted(folder):
    text = 'path,label\nimg/0.png,"Paris, France"\nimg/1.png,"Lyon, France"\nimg/2.png,Rome\n'
    found = read_table(csv(folder, text))
    assert classes(found.train) == ("Lyon, France", "Paris, France", "Rome")
    assert "'Lyon, France', 'Paris, France'" in found.notes[1]


def test_a_name_in_brackets_is_a_name(folder):
    found = read_table(csv(folder, "path,labels\nimg/0.png,[unknown]|red (dark)\nimg/1.png,(none)\n"))
    assert classes(found.train) == ("(none)", "[unknown]", "red (dark)")


def test_a_class_made_of_others_is_noted(folder):
    found = read_table(csv(folder, "path,label\nimg/0.png,red short\nimg/1.png,red\nimg/2.png,short\n"))
    assert classes(found.train) == ("red", "red short", "short")
    assert "'red short'" in found.notes[1]


@pytest.mark.parametrize(
    ("column", "cells", "noted"),
    [
        ("label", ("red", "blue", "blue"), "2, such as ./img/0.png: 'red' in line 2 and 'blue' in line 3"),
        ("label", ("red", "red", "red"), None),
        ("labels", ("red|blue", "blue|red", "red"), "1, such as img/0.png: 'blue, red' in line 2 and 'red' in"),
    ],
)
def test_an_image_with_two_labels_in_two_lines_is_noted(folder, column, cells, noted):
    rows = zip(("img/0.png", "./img/0.png", "img/0.png", "img/1.png"), (*cells, "blue"), strict=True)
    notes = read_table(csv(folder, f"path,{column}\n" + "\n".join(map(",".join, rows)))).notes[1:]
    assert [noted is not None and noted in note for note in notes] == ([] if noted is None else [True])


def test_a_list_means_what_it_says(folder):
    names = ["red", "blue", "red, blue"]
    found = read_table(jsonl(folder, *({"path": f"img/{i}.png", "labels": [name]} for i, name in enumerate(names))))
    assert classes(found.train) == ("blue", "red", "red, blue")
    assert "'red, blue'" in found.notes[1]
    assert "one label" in found.notes[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rows"),
        ("path,label\n", "rows"),
        ("pth,label\nimg/0.png,a\n", r"pth, label.*'path'"),
        ("path,lable\nimg/0.png,a\n", r"'lable'.*'label'"),
        ("path,label,splitt\nimg/0.png,a,val\n", r"'splitt'.*'split'"),
        ("path,label,labels\nimg/0.png,a,a\n", r"'label'.*'labels'"),
        ("path,label,value\nimg/0.png,a,3\n", r"'label'.*'value'"),
        ("path,path\nimg/0.png,a\n", "columns"),
        ("path,label\nimg/0.png,a\nimg/1.png\n", r"line 3.*1 .*2 columns"),
        ("path,label\nimg/0.png,\n", r"line 2.*label.*''"),
        ("path,label\nimg/0.png,-1\n", r"line 2.*label.*-1"),
        ("path,label,split\nimg/0.png,a,trian\n", r"line 2.*'trian'.*'train'"),
        ("path,label,split\nimg/0.png,a,val\n", "train"),
        ("path,label\nother/0.png,a\nother/1.png,b\n", r"first 2 .*relative"),
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
        ("{", r"line 1.*JSON.*column 2"),
        ('{"label": ' + "9" * 5000 + "}", r"line 1.*JSON"),
        ("[1]", r"line 1.*path"),
        ('{"path": "img/0.png", "labels": 3}', "list"),
        ('{"path": "img/0.png", "label": null}', r"label.*None"),
        ('{"path": "img/0.png", "label": ["a"]}', r"list.*labels"),
        ('{"path": "img/0.png", "labels": [true]}', r"labels.*True"),
    ],
)
def test_bad_jsonl_names_the_line(folder, line, message):
    with pytest.raises(DataError, match=message):
        read_table(csv(folder, line, "table.jsonl"))


def test_not_utf8(folder):
    file = folder / "t.csv"
    file.write_bytes(b"path,label\nimg/\xff.png,a\n")
    with pytest.raises(DataError, match="UTF-8"):
        read_table(file)


def table(folder, header, *rows, name="table.csv"):
    return csv(folder, "\n".join([header, *(f"img/{number % 4}.png,{row}" for number, row in enumerate(rows))]), name)


def test_a_table_without_targets_is_unlabelled(folder):
    assert read_table(csv(folder, "path\nimg/0.png\nimg/1.png\n")).train.schema == {}
    found = read_table(table(folder, "path,photographer", "Ann", "Ben"))
    assert found.train.targets == {}
    assert all(word in found.notes[0] for word in ("photographer", "--label"))
    assert "photographer" in found.notes[1]


def test_a_column_of_numbers(folder):
    found = read_table(table(folder, "path,age,name", "3,x", "4.5,y", "-1e2,z"))
    assert found.train.schema == {"numbers": NumbersTarget(names=("age",))}
    assert found.train.targets["numbers"].tolist() == [[3.0], [4.5], [-100.0]]
    assert "1 number (age)" in found.notes[0]
    assert "not used: name" in found.notes[1]


def test_several_columns_of_numbers(folder):
    found = read_table(table(folder, "path,,id,x,y,blurred", "0,7,3,4,0", "1,8,5,6,1"))
    assert found.train.schema == {"numbers": NumbersTarget(names=("x", "y"))}
    assert found.train.targets["numbers"].tolist() == [[3, 4], [5, 6]]
    chosen = read_table(table(folder, "path,x,y", "3,4", "5,6"), Wanted(columns=("y", "x")))
    assert chosen.train.targets["numbers"].tolist() == [[4, 3], [6, 5]]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", r"line 3.*'age'.*empty"),
        ("nan", r"line 3.*nan.*finite"),
        ("-inf", r"line 3.*inf.*finite"),
        ("1e39", r"line 3.*1e39.*finite"),
        ("old", r"line 3.*'old'.*number"),
        ('"3,5"', r"line 3.*comma.*3\.5"),
    ],
)
@pytest.mark.parametrize("wanted", [Wanted(), Wanted(columns=("age",), kinds=("numbers",))], ids=["found", "chosen"])
def test_a_wrong_number_is_reported_with_its_line(folder, cell, message, wanted):
    with pytest.raises(DataError, match=message) as caught:
        read_table(table(folder, "path,age", "3", cell, "5", "6"), wanted)
    assert "--label" in str(caught.value)


@pytest.mark.parametrize("cell", ["null", "true", "[1, 2]", "1" + "0" * 400, "NaN"])
def test_json_cells_that_are_not_numbers(folder, cell):
    rows = [f'{{"path": "img/{number}.png", "age": {value}}}' for number, value in enumerate(("3", "4.5", cell))]
    with pytest.raises(DataError, match=r"line 3.*'age'"):
        read_table(csv(folder, "\n".join(rows), "t.jsonl"))


def test_integers_are_classes_in_a_label_column_and_numbers_elsewhere(folder):
    text = ("path,label,year", "0,1999", "1,2003", "2,2011")
    assert read_table(table(folder, *text)).train.schema == {"label": ClassTarget(classes=("0", "1", "2"))}
    years = read_table(table(folder, *text), Wanted(columns=("year",))).train
    assert years.schema == {"numbers": NumbersTarget(names=("year",))}
    assert years.targets["numbers"].tolist() == [[1999], [2003], [2011]]
    as_classes = read_table(table(folder, *text), Wanted(columns=("year",), kinds=("class",))).train
    assert as_classes.schema == {"label": ClassTarget(classes=("1999", "2003", "2011"))}
    as_number = read_table(table(folder, *text), Wanted(columns=("label",), kinds=("numbers",))).train
    assert as_number.schema == {"numbers": NumbersTarget(names=("label",))}


def test_the_kinds_of_a_task_decide_between_columns(folder):
    text = ("path,label,value", "a,3", "b,4")
    assert "label" in read_table(table(folder, *text), Wanted(kinds=("class", "labels"))).train.schema
    assert "numbers" in read_table(table(folder, *text), Wanted(kinds=("numbers",))).train.schema


def test_class_numbers_in_a_column_of_labels_are_names(folder):
    found = read_table(table(folder, "path,labels", "0", "1", "1", "0"))
    assert found.train.schema == {"labels": LabelsTarget(classes=("0", "1"))}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(columns=("yaer",)), r"'yaer'.*'year'"),
        (Wanted(columns=("a", "b"), kinds=("class",)), r"line 3.*2 of 2"),
        (Wanted(columns=("a", "year"), kinds=("labels",)), r"line 2.*'1999'.*0 or 1"),
    ],
)
def test_columns_that_do_not_fit(folder, wanted, message):
    with pytest.raises(DataError, match=message):
        read_table(table(folder, "path,a,b,year", "0,1,1999", "1,1,2003"), wanted)


def test_other_columns_are_not_taken_for_typos(folder):
    assert len(read_table(table(folder, "path,label,name,title,seat,test", "a,x,y,1,2", "b,x,y,1,2")).train) == 2


def test_several_targets_for_a_task_that_learns_from_several(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "0.png")
    Image.new("L", (8, 8), 1).save(tmp_path / "m.png")
    table = tmp_path / "t.csv"
    table.write_text("path,label,boxes,mask\n0.png,cat,1 1 5 5 cell,m.png\n0.png,,?,\n0.png,dog,,\n")
    whole = read_table(table, Wanted(kinds=("class", "labels", "boxes", "mask", "depth"), several=True))
    found = whole.train
    assert set(found.schema) == {"label", "boxes", "mask"}
    known = {name: target.known(found.targets[name]).tolist() for name, target in found.schema.items()}
    assert known == {"label": [True, False, True], "boxes": [True, False, True], "mask": [True, False, False]}
    assert found.schema["boxes"].text(found.targets["boxes"][2]) == "no boxes"
    assert "2 of 3" in whole.notes[0]
    texts = [found.schema["mask"].text(value) for value in found.targets["mask"]]
    assert texts == ["m.png", "not annotated", "not annotated"]
    with pytest.raises(DataError, match="--label"):
        read_table(table)
    assert set(read_table(table, Wanted(kinds=("mask",))).train.schema) == {"mask"}
