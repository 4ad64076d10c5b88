"""Whether the operators of a graph may stand in an artefact."""

import torch

from vitrail.deploy.artefact.pt2_graph import check_operator


def check_allowed(graph: torch.fx.Graph) -> None:
    """ValueError names one that may not: see `vitrail/deploy/artefact/allowed_operators.py`."""
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    operators = {f"torch.ops.{target}" for target in targets if isinstance(target, torch._ops.OpOverload)}
    assert operators
    for target in operators:
        check_operator(target)
