import torch

from vitrail.lab.attention_matrix import AttentionMatrix, AttentionMatrixSettings


def test_softmax_attention_has_the_properties_and_logits_follow_the_law() -> None:
    settings = AttentionMatrixSettings(tokens=8, dim=16, num_heads=2, widths=(8, 64), pairs=20_000)
    found = AttentionMatrix().measure(settings, seed=0, device=torch.device("cpu"))
    assert found["row_error"] < 1e-5
    assert found["permutation_error"] < 1e-5
    assert abs(found["raw"][1] / found["raw"][0] - 8) < 0.8
    assert len(found["trained"]) == 10  # layers of the packaged model
