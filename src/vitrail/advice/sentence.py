"""A piece of advice with the measured rows that it rests on."""

from dataclasses import dataclass

from vitrail.advice.rows import Row


@dataclass(frozen=True)
class Sentence:
    """A piece of advice, the rows it rests on, and whether the case lies outside of what was measured."""

    text: str
    rows: tuple[Row, ...] = ()
    outside: bool = False
