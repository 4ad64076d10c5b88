"""What a page shows: every picture with every model."""

import pytest
from support.made_views import gallery, view

from vitrail.errors import ConfigError
from vitrail.explain.page.gallery import Gallery


def test_every_picture_is_there_for_every_model() -> None:
    both = gallery(view(0, model="one"), view(0, model="two"))
    assert (both.models, both.pictures) == (["one", "two"], ["picture 0.jpg"])
    assert both.measured == ["insertion", "deletion", "shuffled", "pointing"]
    with pytest.raises(ConfigError, match="2 x 2"):
        gallery(view(0, model="one"), view(1, model="two"))
    with pytest.raises(ConfigError, match="at least one"):
        Gallery(title="none", views=())


def test_they_are_shown_in_one_line() -> None:
    assert repr(gallery()) == "Gallery('made': 2 pictures, one)"
    assert repr(view(0)) == "View('picture 0.jpg', 'one': cat 70.0 %; relevance, rollout)"


def test_the_answer_is_the_first_bar() -> None:
    assert view(0).answer == "cat 70.0 %"
    assert view(0, bars=()).answer == ""
