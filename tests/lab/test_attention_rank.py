import torch

from vitrail.lab.attention_rank import AttentionRank, AttentionRankSettings


def test_the_softmax_raises_the_rank_of_its_logits() -> None:
    settings = AttentionRankSettings(tokens=16, widths=(2,), matrices=4)
    found = AttentionRank().measure(settings, seed=0, device=torch.device("cpu"))
    assert found["logits"] == [1.0]
    assert found["ranks"][0] > 4
