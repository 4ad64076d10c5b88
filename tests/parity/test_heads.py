"""Whole models with a head give the same numbers as Hugging Face's, from the files that these save."""

from pathlib import Path

import pytest
from support.peers import transformers

from parity.heads import HeadCase, head_cases, head_errors

LIMIT = 1e-5


@pytest.mark.parametrize("case", head_cases(), ids=lambda case: case.name)
def test_same_numbers(case: HeadCase, tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    errors = head_errors(case, tmp_path)
    assert errors
    assert max(errors.values()) < LIMIT, errors
