"""Settings of the service: address, batching and limits."""

from dataclasses import dataclass
from typing import Annotated

from vitrail.config import Config, Count, CountFromZero, NotNegative, Positive, Range
from vitrail.errors import ConfigError
from vitrail.serve.host_header import AllowedHosts
from vitrail.serve.hosts import Host

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # that are decoded; PPM is for data, not for strangers
MIN_KEY_LENGTH = 16
BACKLOG = 512  # connections that wait to be accepted
_DECODER_BYTES = 32 << 20  # of a decoder, besides those for the file and its pixels
_BYTES_PER_PIXEL = 20  # WebP needs 16 (two canvases, a frame, Pillow's image), all others less


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Config):
    """Limits apply to each worker; times are in seconds.

    A batch waits at most `batch_wait` for images that are still being decoded. A request that would wait in the queue
    for longer than `max_delay` gets 503 at once; one that takes longer than `timeout` in total is cancelled.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8080  # 0: any free port
    workers: Count = 1
    max_batch: Count = 32
    batch_wait: NotNegative = 0.005
    max_delay: Positive = 2.0
    max_waiting: Count = 256  # images that are being decoded, queued or computed
    max_explaining: CountFromZero = 4  # explanations that run or wait
    max_bytes: Count = 16 << 20  # per request
    max_memory: Count = 256 << 20  # bytes of all requests together
    min_rate: CountFromZero = 1000  # bytes per second at which a body must arrive; 0: at any rate
    max_files: Count = 64  # per request
    max_pixels: Count = 25_000_000  # per image, per tile, per canvas
    decoders: Count = 2  # processes that decode
    decode_seconds: Positive = 5.0  # of processor time, per image
    max_connections: Count = 512
    timeout: Positive = 15.0
    drain: NotNegative = 0.5  # how long to accept connections after SIGTERM, while /readyz answers 503
    allowed_hosts: tuple[str, ...] = ()  # that requests may be addressed to, besides loopback and `host`
    url_hosts: tuple[str, ...] = ()  # hosts that images may be fetched from, as `Host.parse` reads them
    api_key: str | None = None
    certificate: str | None = None  # PEM files, for https
    private_key: str | None = None

    def __post_init__(self) -> None:
        """Checks the hosts, that TLS has both of its files, and that the API key is long enough."""
        super().__post_init__()
        AllowedHosts(self.host, self.allowed_hosts)
        for host in self.url_hosts:
            Host.parse(host)
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("https needs a certificate and a private key; only one of them is given")
        if self.api_key is not None and len(self.api_key) < MIN_KEY_LENGTH:
            raise ConfigError(
                f"the API key has {len(self.api_key)} characters; it must have {MIN_KEY_LENGTH} or more. To make one: "
                "python -c 'import secrets; print(secrets.token_urlsafe(24))'"
            )

    @property
    def decoder_bytes(self) -> int:
        """Memory that each decoder may allocate."""
        return _DECODER_BYTES + 3 * self.max_bytes + _BYTES_PER_PIXEL * self.max_pixels

    @property
    def address(self) -> str:
        """The URL of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"
