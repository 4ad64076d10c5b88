"""No part of a .pt2 can run code: a planted pickle, name, expression or guard is refused."""

import contextlib
import io
import zipfile

import pytest
import torch
from support.planted import pickled, rewritten, saved, with_json
from support.shipped import first, outputs, photos

from vitrail.deploy.artefact.engine import TorchEngine
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.artefact.pt2_archive import CONSTANTS, GRAPH, INPUTS, WEIGHTS, safe_archive
from vitrail.errors import CheckpointError

CALL = "__import__('pathlib').Path({!r}).touch()"


@pytest.fixture(scope="module")
def source(shipped):
    return shipped[0] / "model.pt2"


@pytest.fixture
def made(tmp_path):
    """The file that planted code would create."""
    return tmp_path / "made"


def refused(path, made, word):
    with pytest.raises(CheckpointError, match=word):
        open_engine(path)
    assert not made.exists()


def test_the_archive_that_torch_gets_has_no_pickle(source):
    with source.open("rb") as file:
        archive, card = safe_archive(file, source)
    with zipfile.ZipFile(archive) as parts:
        data = {name.partition("/")[2]: parts.read(name) for name in parts.namelist()}
    assert data[INPUTS] == b""
    assert [name for name in data if name.endswith(".pt")] == [INPUTS]
    assert '"task"' in card


def test_a_program_answers_as_before(source, model):
    images = photos(2)
    expected = first(outputs(TorchEngine(model), images))
    torch.testing.assert_close(first(outputs(open_engine(source), images)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        INPUTS,
        "data/weights/model.pt",
        "data/weights/weight_0.pt",
        "data/constants/model.pt",
        "data/constants/custom_obj_0",
        "data/constants/opaque_obj_0",
        "data/aotinductor/model/wrapper.so",
        "data/aotinductor/model/weights_config.json",
        "data/sample_inputs/other.pt",
        "models/other.json",
        "extra/other",
        "executorch/model.pte",
        "version",
        "serialized_state_dict.pt",
        "serialized_example_inputs.pt",
        "../outside",
    ],
)
@pytest.mark.parametrize("plant", [pickled, saved])
def test_a_planted_pickle_never_runs(source, tmp_path, made, part, plant):
    path = rewritten(source, tmp_path / "model.pt2", {part: plant(made)})
    refused(path, made, "not opened")


@pytest.mark.parametrize("table", [WEIGHTS, CONSTANTS])
@pytest.mark.parametrize("change", ["use_pickle", "opaque", "outside", "empty", "expanded"])
def test_a_table_of_tensors_names_raw_tensors_alone(source, tmp_path, made, table, change):
    folder = table.rpartition("/")[0]
    with zipfile.ZipFile(source) as archive:
        stem = "weight" if table == WEIGHTS else "tensor"
        assert f"model/{folder}/{stem}_0" in archive.namelist()

    def edit(content):
        about = next(iter(content["config"].values()))
        if change == "use_pickle":
            about["use_pickle"] = True
        elif change in ("empty", "expanded"):
            about["tensor_meta"] |= {"sizes": [{"as_int": 10**12}], "strides": [{"as_int": 0}]}
        else:
            about["path_name"] = "opaque_obj_0" if change == "opaque" else "../sample_inputs/model.pt"

    path = with_json(source, tmp_path / "one.pt2", table, edit)
    parts = {f"{folder}/{stem}_0": b"" if change == "empty" else saved(made)}
    refused(rewritten(path, tmp_path / "model.pt2", parts), made, "tensor")


def test_sample_inputs_are_not_unpacked(source, tmp_path, made):
    stored, packed = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(1000), stored)
    with zipfile.ZipFile(stored) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(rewritten(source, tmp_path / "model.pt2", {INPUTS: packed.getvalue()}), made, "sample inputs")


def test_parts_do_not_overlap(source, tmp_path, made, monkeypatch):
    path = rewritten(source, tmp_path / "model.pt2")
    real = zipfile.ZipFile.infolist

    def larger(archive):
        found = real(archive)
        found[-1].file_size = found[-1].compress_size = path.stat().st_size
        return found

    monkeypatch.setattr(zipfile.ZipFile, "infolist", larger)
    refused(path, made, "overlap")


def graph_edits(made):
    """Every place of the graph that torch turns into Python, or looks code up by."""
    call = CALL.format(str(made))

    def graph(content):
        return content["graph_module"]["graph"]

    def size(content):
        values = graph(content)["tensor_values"].values()
        return next(side for value in values for side in value["sizes"] if "as_expr" in side)["as_expr"]

    def operator(target):
        return lambda content: graph(content)["nodes"][0].update(target=target)

    def argument(content):
        node = graph(content)["nodes"][0]
        node["inputs"][0]["arg"] = {"as_operator": "os.system"}

    def named(name, given):
        def change(content):
            node = graph(content)["nodes"][0]
            node["target"] = "torch.ops.aten.to.dtype_layout"
            node["inputs"].append({"name": name, "arg": given, "kind": 2})

        return change

    def sparse(content):
        next(iter(graph(content)["tensor_values"].values()))["layout"] = 1

    def renamed(content):
        spec = content["graph_module"]["signature"]["input_specs"][0]["parameter"]
        spec["parameter_name"] = f'x", {call}) #'

    def tree(content):
        signature = content["graph_module"]["module_call_graph"][0]["signature"]
        signature["out_spec"] = signature["out_spec"].replace("builtins.dict", "collections.defaultdict")

    def forward(content):
        content["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = [f"images={call}"]

    return {
        "guards": lambda content: content.update(guards_code=[call]),
        "size": lambda content: size(content).update(expr_str=call),
        "size-call": lambda content: size(content).update(expr_str=f"Add(Integer(1), {call})"),
        "size-power": lambda content: size(content).update(expr_str="Pow(Integer(9), Integer(999999999))"),
        "size-name": lambda content: size(content).update(expr_str="Symbol('s0).x(', integer=True)"),
        "operator": operator("_operator.methodcaller"),
        "attribute": operator("torch.hub.load"),
        "file": operator("torch.ops.aten.from_file.default"),
        "private": operator("torch.ops.aten._print.default"),
        "strided": operator("torch.ops.aten.as_strided.default"),
        "library": operator("torch.ops.mine.run.default"),
        "extension": operator("#mine:run"),
        "argument": argument,
        "format": named("memory_format", {"as_int": 4}),
        "number of a type": named("dtype", {"as_int": 99}),
        "layout": named("layout", {"as_layout": 2}),
        "sparse": sparse,
        "parameter": renamed,
        "type": tree,
        "signature": forward,
        "objects": lambda content: graph(content).update(custom_obj_values={"a": {"name": "a", "class_fqn": "b"}}),
    }


@pytest.mark.parametrize("place", sorted(graph_edits("")))
def test_a_graph_is_data(source, tmp_path, made, place):
    path = with_json(source, tmp_path / "model.pt2", GRAPH, graph_edits(made)[place])
    refused(path, made, "not opened")


@pytest.mark.parametrize("damage", ["cut", "compressed", "twice", "deep", "nan", "no card", "not a zip"])
def test_damaged_archives_are_a_sentence(source, tmp_path, made, damage):
    path = tmp_path / "model.pt2"
    if damage == "cut":
        path.write_bytes(source.read_bytes()[:-2000])
    elif damage == "not a zip":
        path.write_bytes(b"\x80\x02}." * 50)
    elif damage == "compressed":
        rewritten(source, path, {"data/weights/weight_0": bytes(10**7)}, compress=True)
    elif damage == "twice":
        path.write_bytes(rewritten(source, tmp_path / "one.pt2").read_bytes())
        with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(f"model/{INPUTS}", saved(made))
    elif damage == "no card":
        rewritten(source, path, {"extra/vitrail": None})
    else:
        rewritten(source, path, {GRAPH: b"[" * 300_000 if damage == "deep" else b'{"a": NaN}'})
    refused(path, made, "\\.pt2")


def test_torch_itself_would_have_run_it(source, tmp_path, made):
    """The reason for all this: where it no longer holds, the checks can be less strict."""
    path = rewritten(source, tmp_path / "model.pt2", {INPUTS: saved(made)})
    with io.BytesIO(path.read_bytes()) as opened, contextlib.suppress(Exception):
        torch.export.load(opened)
    assert made.exists()
