"""The process that forks decoders ends with its owner, and with nobody else."""

import os

from vitrail.serve.fork_server import ForkServer


def test_a_fork_server_ends_with_its_process() -> None:
    server = ForkServer()
    server.prepare()
    started = server._process
    assert started is not None
    server.close(os.getpid() + 1)  # as in a fork
    assert started.poll() is None
    server.close(os.getpid())
    assert started.poll() is not None
