"""An app behind the HTTP protocol of the service, in the loop of the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sized

import uvicorn

from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.connections import limited_protocol
from vitrail.serve.supervisor import listen

Address = tuple[str, int]


@contextlib.asynccontextmanager
async def listening(of: App, config: ServeConfig, head_seconds: float) -> AsyncIterator[tuple[Address, Sized]]:
    """An app behind the protocol, in this loop; its host and port, and the connections that it has."""
    protocol = limited_protocol(config, of.metrics, head_seconds)
    settings = uvicorn.Config(of, http=protocol, lifespan="off", log_config=None)
    server, listener = uvicorn.Server(settings), listen(ServeConfig(port=0))
    running = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield listener.getsockname(), server.server_state.connections
    finally:
        server.should_exit = True
        await running
