"""Scores as tables."""

from support.made_views import gallery, view

from vitrail.explain.page.render import gallery_page
from vitrail.explain.page.tables import mean_table, narrow_table, score_table, summary
from vitrail.explain.scoring.map_scores import Score


def test_tables_show_what_was_measured_and_nothing_else() -> None:
    both = gallery(view(0), view(1, scores={"relevance": Score(0.5, 0.4, shuffled=0.3, pointing=False)}))
    assert [row["pointing"] for row in score_table(both).rows] == ["hit", "miss", "miss", "hit", "miss"]
    first = gallery(view(0), view(1))
    (relevance, *_) = mean_table(first).rows
    assert relevance == {
        "model": "one", "method": "relevance", "insertion": 0.7, "deletion": 0.2, "shuffled": 0.1, "pointing": 1.0,
    }  # fmt: skip
    assert "shuffled weights" in gallery_page(first)
    plain = gallery(view(0, scores={"relevance": Score(0.5, 0.4)}))
    assert list(mean_table(plain).columns) == ["method", "insertion", "deletion"]
    assert list(score_table(plain).rows[0]) == [
        "picture", "model", "answer", "target", "score", "method", "insertion", "deletion",
    ]  # fmt: skip
    assert "Pointing" not in gallery_page(plain)


def test_a_narrow_table_has_picture_answer_and_model_beside_the_methods() -> None:
    long = view(0, picture=f"{'folder/' * 9}cat.jpg")
    lines = [row["picture"] for row in narrow_table(gallery(long)).rows]
    assert lines == ["…folder/folder/cat.jpg", "cat 70.0 %", "", ""]
    assert len(lines[0]) <= 22
    alone = view(0, model="two", picture=long.picture, scores={"relevance": Score(0.5, 0.25)})
    rows = narrow_table(gallery(long, alone)).rows[4:]
    assert [row["picture"] for row in rows] == ["…folder/folder/cat.jpg", "cat 70.0 %", "two"]
    assert [row["deletion"] for row in rows] == [0.25, None, None]


def test_a_summary_says_what_is_missing() -> None:
    report = summary(gallery(view(0, missing="No attention."), view(1, note="Few steps.")), narrow=True)
    titles = [section.title for section in report.sections]
    assert titles == ["Picture by picture", "How faithful the maps are, mean over 2 pictures", "Attention", "Scores"]
    assert "one: No attention." in report["Attention"].text


def test_without_scores_the_methods_are_listed() -> None:
    plain = gallery(view(0, scores={}), view(1, scores={}))
    assert [row["method"] for row in score_table(plain).rows] == ["relevance", "rollout"] * 2
    assert list(narrow_table(plain).columns) == ["picture", "method"]
    assert [section.title for section in summary(plain, narrow=False).sections] == ["Picture by picture"]
