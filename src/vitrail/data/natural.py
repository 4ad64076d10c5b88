"""Natural sort order: img2 before img10."""

import re


def natural(text: str) -> tuple[list[tuple[int, int, str]], str]:
    """A sort key that puts img2 before img10; ties are sorted as plain text."""
    parts = re.split(r"([0-9]+)", text)
    return [_digits(part) if part.isdigit() else (0, 0, part.casefold()) for part in parts if part], text


def _digits(text: str) -> tuple[int, int, str]:
    """Sorts as the number does, which may have more digits than Python converts."""
    digits = text.lstrip("0")
    return 1, len(digits), digits
