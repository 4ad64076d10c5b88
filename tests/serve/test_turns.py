"""Requests take turns in a queue."""

import asyncio
from dataclasses import dataclass
from typing import Any

from vitrail.serve.turns import Turns


@dataclass(eq=False)
class Work:
    owner: str
    future: "asyncio.Future[Any]"


def queue(letters: str) -> tuple[Turns[Work], list[Work]]:
    loop = asyncio.new_event_loop()
    made, found = Turns[Work](), [Work(letter, loop.create_future()) for letter in letters]
    loop.close()
    for one in found:
        made.add(one)
    return made, found


def order(turns: Turns[Work]) -> str:
    found = ""
    while (one := turns.take(lambda work: True)) is not None:
        found += one.owner
    return found


def test_owners_take_turns() -> None:
    turns, _ = queue("aaabbc")
    assert (len(turns), turns.owners, [one.owner for one in turns.heads()]) == (6, 3, ["a", "b", "c"])
    assert order(turns) == "abcaba"
    assert (len(turns), turns.owners, turns.head("a")) == (0, 0, None)


def test_one_that_may_not_be_taken_keeps_its_place() -> None:
    turns, found = queue("aab")
    assert turns.take(lambda work: work.owner != "a") is found[2]
    assert turns.take(lambda work: False) is None
    assert turns.head("a") is found[0]
    assert order(turns) == "aa"


def test_one_that_is_put_back_comes_after_the_others() -> None:
    turns, found = queue("aabc")
    assert turns.take(lambda work: True) is found[0]
    turns.put_back(found[0])
    assert [turns.take(lambda work: True) for _ in range(3)] == [found[2], found[3], found[0]]


def test_cancelled_work_is_dropped() -> None:
    loop = asyncio.new_event_loop()
    turns: Turns[Work] = Turns()
    for letter in "aab":
        turns.add(Work(letter, loop.create_future()))
    for head in list(turns.heads()):
        head.future.cancel()
    assert order(turns) == "a"
    loop.close()
