"""A head that lacks a method cannot be built."""

import pytest

from vitrail.models.heads import DepthHead


def test_methods_are_required():
    with pytest.raises(TypeError, match="positive"):
        DepthHead()
