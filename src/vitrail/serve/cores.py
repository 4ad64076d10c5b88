"""How many cores torch uses in a thread: all for the model, one for the resizing of single images."""

import torch


def use_cores(count: int) -> None:
    """Of this thread alone; a new thread has as many as another one asked for last."""
    torch.get_num_threads()  # otherwise the thread would still take over that number when it first computes
    torch.set_num_threads(count)
