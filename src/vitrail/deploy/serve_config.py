"""What a service is told: where it listens, how it batches, and how much it takes."""

from dataclasses import dataclass
from typing import Annotated

from vitrail.config import Config, Count, CountFromZero, NotNegative, Positive, Range
from vitrail.deploy.serve_hosts import Host
from vitrail.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHORTEST_KEY = 16
BACKLOG = 512  # connections that wait to be accepted


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Config):
    """Limits hold for each worker; times are seconds.

    A batch waits at most `batch_wait` for pictures that are on their way. A request whose turn would come later than
    `max_delay` is sent away with 503 at once; one that takes longer than `timeout` in all is given up.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8080  # 0: any that is free
    workers: Count = 1
    max_batch: Count = 32
    batch_wait: NotNegative = 0.005
    max_delay: Positive = 2.0
    max_waiting: Count = 256  # pictures that are read, decoded, queued or computed
    max_explaining: CountFromZero = 4  # explanations that run or wait
    max_bytes: Count = 16 << 20  # of one request
    max_memory: Count = 256 << 20  # bytes of all requests together
    max_files: Count = 64  # of one request
    max_pixels: Count = 25_000_000  # of one picture
    max_connections: Count = 512
    timeout: Positive = 15.0
    drain: NotNegative = 0.5  # how long one goes on accepting after SIGTERM, while /readyz says no
    url_hosts: tuple[str, ...] = ()  # where pictures may be fetched from, as `Host.parse` reads it; none: nowhere
    api_key: str | None = None
    certificate: str | None = None  # PEM files, for https
    private_key: str | None = None

    def __post_init__(self) -> None:
        """Refuses hosts that are none, half a TLS configuration, and keys that could be guessed."""
        super().__post_init__()
        for host in self.url_hosts:
            Host.parse(host)
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("https needs both a certificate and its private key; only one of them is given")
        if self.api_key is not None and len(self.api_key) < SHORTEST_KEY:
            raise ConfigError(
                f"the API key has {len(self.api_key)} characters; it must have {SHORTEST_KEY} or more: "
                "python -c 'import secrets; print(secrets.token_urlsafe(24))'"
            )

    @property
    def address(self) -> str:
        """What a browser is given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"
