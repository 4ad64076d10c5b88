import pytest

from vitrail.deploy.artefact.pt2_graph import check_arguments, check_expression, check_name, check_operator, check_tree


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.linear.default",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.aten.sum.dim_IntList",
        "torch.ops.aten._upsample_bicubic2d_aa.vec",
        "torch.ops.higher_order.wrap_with_autocast",
        "_operator.getitem",
        "torch.sym_max",
    ],
)
def test_operators_of_models(target):
    check_operator(target)


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.add_.Tensor",
        "torch.ops.aten.add.out",
        "torch.ops.aten.set_.source_Storage",
        "torch.ops.aten.resize.default",
        "torch.ops.aten.empty.memory_format",
        "torch.ops.aten.as_strided.default",
        "torch.ops.aten.sparse_csr_tensor.crow_col_value",
        "torch.ops.aten.max_unpool2d.default",
        "torch.ops.aten.set_data.default",
        "torch.ops.aten.quantized_lstm.input",
        "torch.ops.aten.mul.Scalar_out",
        "torch.ops.higher_order.cond",
        "torch.ops.higher_order.inductor_compiled_code",
        "torch.ops.os.system.default",
        "torch.load",
        "torch.ops.aten.__class__",
        "math.factorial",
        "_operator.call",
        "builtins.eval",
        "",
    ],
)
def test_other_operators_are_refused(target):
    with pytest.raises(ValueError, match="operator") as raised:
        check_operator(target)
    assert target in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s14', positive=True, integer=True)",
        "Add(Mul(Integer(96), Symbol('u0', integer=True), Symbol('u1', integer=True)), Integer(-1))",
        "Max(Integer(1), Pow(Symbol('u1', integer=True), Integer(2)))",
        "LessThan(Symbol('u0', integer=True), Integer(8192))",
    ],
)
def test_expressions_of_sizes(text):
    check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol(__import__('os').getcwd())",
        "Symbol('s0', integer=print())",
        "Integer(10) ** Integer(10)",
        "Integer('9' * 10)",
        "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
        "Integer(99999999999999999999)",
        "Add(*[Integer(1)])",
        "(lambda: 1)()",
        "s0",
        "Add(" * 2000,
        "Add(" * 200 + ")" * 200,
        "Identity(x=Integer(1))",
        "",
    ],
)
def test_other_expressions_are_refused(text):
    with pytest.raises(ValueError, match="shape"):
        check_expression(text)


@pytest.mark.parametrize("name", ["a b", "a-b", "a.b()", "x=1", "é", "1a", "a..b", "a" * 600, "a\n"])
def test_names_are_identifiers(name):
    with pytest.raises(ValueError, match="not a name"):
        check_name(name)


def test_structures_are_plain():
    check_tree('[1, {"type": "builtins.dict", "context": "[\\"logits\\"]", "children_spec": []}]')
    with pytest.raises(ValueError, match="type"):
        check_tree('[1, {"type": "collections.defaultdict", "context": "[]", "children_spec": []}]')


@pytest.mark.parametrize(
    ("operator", "name", "kind"),
    [
        ("to.dtype", "dtype", "scalar_type"),
        ("to.dtype", "memory_format", "memory_format"),
        ("zeros.default", "device", "device"),
        ("zeros.default", "layout", "layout"),
        ("promote_types.default", "type1", "scalar_type"),
        ("_softmax.default", "half_to_float", None),
    ],
)
def test_types_devices_formats_and_layouts_are_given_as_such(operator, name, kind):
    target = f"torch.ops.aten.{operator}"
    check_arguments(target, [{"name": name, "arg": {f"as_{kind or 'bool'}": 1}}])
    check_arguments(target, [{"name": name, "arg": {"as_none": True}}])
    for wrong in ({"as_int": 4}, {"as_sym_int": {}}, {f"as_{kind}": 1, "as_int": 4}):
        if kind is None:
            check_arguments(target, [{"name": name, "arg": wrong}])
            continue
        with pytest.raises(ValueError, match=name):
            check_arguments(target, [{"name": name, "arg": wrong}])
