"""An .onnx has operators that are built in and tensors, and reads no file outside its folder."""

import pytest

from vitrail.deploy.artefact.onnx_check import check_onnx, fields
from vitrail.deploy.artefact.opening import open_engine
from vitrail.errors import CheckpointError

onnx = pytest.importorskip("onnx")


@pytest.fixture
def proto(shipped):
    return onnx.load(shipped[0] / "model.onnx")


def refused(model, folder, word):
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError, match=word):
        open_engine(path)


def test_what_vitrail_writes_is_read(shipped, proto):
    for name in ("model.onnx", "model.int8.onnx"):
        path = shipped[0] / name
        found = check_onnx(path.read_bytes(), path)
        assert set(found.metadata) == {"vitrail"}
    stored = sum(onnx.numpy_helper.to_array(tensor).size for tensor in proto.graph.initializer)
    assert check_onnx(proto.SerializeToString(), path).parameters >= stored
    assert found.external_files == set()


@pytest.mark.parametrize("domain", ["mine", "com.microsoft", "ai.onnx.ml"])
def test_other_domains_are_refused(proto, tmp_path, domain):
    proto.graph.node[0].domain = domain
    refused(proto, tmp_path, domain)


def test_other_opsets_are_refused(proto, tmp_path):
    proto.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    refused(proto, tmp_path, "mine")


def test_functions_are_refused(proto, tmp_path):
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    opset = [onnx.helper.make_opsetid("", 20)]
    proto.functions.append(onnx.helper.make_function("", "f", ["x"], ["y"], [node], opset))
    refused(proto, tmp_path, "functions")


def test_graphs_within_graphs_are_refused(proto, tmp_path):
    inner = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "inner", [], [])
    proto.graph.node.append(onnx.helper.make_node("Identity", ["c"], ["z"], then_branch=inner))
    refused(proto, tmp_path, "graphs")


@pytest.mark.parametrize("operator", ["Loop", "Scan", "If", "SequenceMap", "StringConcat", "Bernoulli", "Mine", ""])
def test_operators_that_are_not_listed_are_refused(proto, tmp_path, operator):
    proto.graph.node.append(onnx.helper.make_node(operator, ["c"], ["z"]))
    refused(proto, tmp_path, f"operator '{operator}'")


def test_a_field_that_only_a_runtime_would_see_is_refused(proto, tmp_path):
    hidden = onnx.helper.make_graph([onnx.helper.make_node("Run", [], ["y"], domain="mine")], "hidden", [], [])
    data = hidden.SerializeToString()
    tag = b"\xba\x80\x80\x80\x10"  # 7 << 3 | 2, and a bit beyond 32, which runtimes drop
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString() + tag + bytes([len(data)]) + data)
    with pytest.raises(CheckpointError, match="protocol buffer"):
        open_engine(path)


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "../secret", "a/../../secret", "sub/weights", "", ".", "link", "gone"]
)
def test_weights_lie_beside_the_model(proto, tmp_path, location):
    (tmp_path / "secret").write_bytes(bytes(100_000))
    folder = tmp_path / "dist"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "weights").write_bytes(bytes(100_000))
    (folder / "link").symlink_to(tmp_path / "secret")
    put_beside(proto, location, 0, 10)
    refused(proto, folder, "beside|exist")


@pytest.mark.parametrize(("offset", "length"), [(0, 10**9), (90, 20), (-1, 4), (10**30, 1)])
def test_a_tensor_ends_before_its_file(proto, tmp_path, offset, length):
    (tmp_path / "weights").write_bytes(bytes(100))
    put_beside(proto, "weights", offset, length)
    refused(proto, tmp_path, "end")


def put_beside(proto, location, offset, length):
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


@pytest.mark.parametrize("kind", [0, 1, 5])
def test_a_field_of_another_type_hides_nothing(proto, tmp_path, kind):
    # A runtime skips a field whose type is not the one of the schema; a check that reads it would see another key.
    (tmp_path / "weights").write_bytes(bytes(100))
    put_beside(proto, "weights", 0, 10)
    skipped = bytes([1 << 3 | kind]) + {0: b"\0", 1: b"location", 5: b"loca"}[kind]
    key, value = b"\x0a\x08location", b"\x12\x09../secret"
    proto.graph.initializer[0].MergeFromString(b"\x6a" + bytes([len(key + skipped + value)]) + key + skipped + value)
    data = proto.SerializeToString()
    if skipped not in data:  # the library drops what it does not know
        pytest.skip("unknown fields are not kept")
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(CheckpointError, match="type"):
        open_engine(tmp_path / "model.onnx")


def test_a_file_that_is_also_in_the_format_of_the_runtime_is_refused(proto, tmp_path):
    # ir_version, then an empty domain of four letters: the identifier of the other format is where it is looked for.
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x12\x04ORTM" + proto.SerializeToString())
    with pytest.raises(CheckpointError, match="format"):
        open_engine(path)


def test_weights_in_a_file_beside_it_are_read(shipped, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(shipped[0] / "model.onnx"), path, save_as_external_data=True, location="model.onnx.data")
    assert check_onnx(path.read_bytes(), path).external_files == {"model.onnx.data"}
    assert open_engine(path).run is not None


def test_a_tensor_is_not_larger_than_its_bytes(proto, tmp_path):
    proto.graph.initializer[0].dims[:] = [10**6, 10**6]
    refused(proto, tmp_path, "numbers")


@pytest.mark.parametrize("keep", [0, 1, 10, 1000, -1])
def test_cut_files_are_a_sentence(shipped, tmp_path, keep):
    path = tmp_path / "model.onnx"
    path.write_bytes((shipped[0] / "model.onnx").read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="onnx"):
        open_engine(path)


def test_fields_fill_their_message():
    first, second = fields(memoryview(b"\x08\x96\x01\x12\x02hi"))
    assert (first.number, first.value, second.number, bytes(second.data)) == (1, 150, 2, b"hi")
    for wrong in (b"\x08", b"\x12\x05hi", b"\x0b", b"\xff" * 20, b"\x02\x00", b"\x8a\x80\x80\x80\x10\x00"):
        with pytest.raises(ValueError, match="protocol buffer"):
            list(fields(memoryview(wrong)))
