"""The verb serve: a model as an HTTP service with a page."""

import argparse
import os
import ssl
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vitrail.config import split_names
from vitrail.errors import ConfigError, Notice

if TYPE_CHECKING:
    from vitrail.serve.config import ServeConfig
    from vitrail.serve.model import Engine, Explainer

KEY = "VITRAIL_API_KEY"


def add_serve(verb: argparse.ArgumentParser) -> None:
    """The options of `vitrail serve`."""
    verb.add_argument(
        "model", help="an artefact of `vitrail export`, a folder of them, a run, a checkpoint, or `packaged`"
    )
    verb.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    verb.add_argument("--port", type=int, default=8080, help="default 8080; 0: any free port")
    verb.add_argument("--workers", type=int, default=1, help="processes, each with the model (default 1)")
    verb.add_argument("--threads", type=int, help="per worker (default: cores / workers)")
    verb.add_argument("--explain", metavar="RUN", help="the run or checkpoint behind an artefact, for explanations")
    verb.add_argument(
        "--calibrate", metavar="DATA", help="labelled images to calibrate on (default: the model's own calibration)"
    )
    verb.add_argument("--max-batch", metavar="N", type=int, help="images per batch (default 32)")
    verb.add_argument("--batch-wait", metavar="MS", type=float, help="longest wait for a fuller batch (default 5)")
    verb.add_argument("--max-delay", metavar="MS", type=float, help="a longer queue answers 503 (default 2000)")
    verb.add_argument("--max-mb", metavar="MB", type=float, help="per request (default 16)")
    verb.add_argument("--max-pixels", metavar="N", type=int, help="per image, tile or canvas (default 25,000,000)")
    verb.add_argument(
        "--decoders", metavar="N", type=int, help="processes per worker that decode images, one at a time (default 2)"
    )
    verb.add_argument(
        "--decode-seconds",
        metavar="S",
        type=float,
        help="processor time per image, then its decoder is killed (default 5)",
    )
    verb.add_argument(
        "--min-rate",
        metavar="N",
        type=int,
        help="bytes per second at which an upload must arrive (default 1000; 0: any)",
    )
    verb.add_argument("--timeout", metavar="S", type=float, help="per request (default 15)")
    verb.add_argument(
        "--allow-urls",
        metavar="HOSTS",
        help="fetch images from URLs on these hosts, such as example.org,*.images.example.org (default: none)",
    )
    verb.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        help="a host name that requests may be addressed to: example.org, *.example.org (all its subdomains) or * "
        "(any); may be repeated (default: localhost and the address of --host)",
    )
    verb.add_argument("--api-key-file", metavar="FILE", type=Path, help=f"file with the API key; or set {KEY}")
    verb.add_argument("--tls-certificate", metavar="PEM", help="serve https; with --tls-key")
    verb.add_argument("--tls-key", metavar="PEM", help="private key of the certificate")


def serve(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C; SIGHUP reloads the model."""
    from vitrail.serve.host_header import LOOPBACK  # noqa: PLC0415
    from vitrail.serve.opening import Opening  # noqa: PLC0415
    from vitrail.serve.supervisor import serve as start  # noqa: PLC0415

    config = _config(options)
    if config.host not in LOOPBACK and config.api_key is None:
        warnings.warn(f"there is no API key: anyone who can reach {config.host} can use it", Notice, stacklevel=1)
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"--threads {options.threads} is not allowed: must be 1 or more")
    opening = Opening(
        model=options.model,
        open_engine=_open_engine,
        open_explainer=_open_explainer,
        explain=options.explain,
        calibrate=options.calibrate,
        threads=options.threads or max(1, (os.cpu_count() or 1) // config.workers),
    )

    def ready(url: str, about: str) -> None:
        try:
            print(f"{about}\n{url} (Ctrl-C stops it)")  # noqa: T201
            sys.stdout.flush()
        except OSError:  # a full disk, or nobody reads it: the service goes on, and exits without another error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    start(opening, config, on_ready=ready)


def _open_engine(path: str, threads: int | None) -> "Engine":
    """Called in the workers alone, as what follows imports torch."""
    from vitrail.api import open_engine  # noqa: PLC0415

    return open_engine(path, threads)


def _open_explainer(path: str) -> "tuple[Explainer, tuple[str, ...]] | None":
    from vitrail.api import open_explainer  # noqa: PLC0415

    return cast("tuple[Explainer, tuple[str, ...]] | None", open_explainer(path))


def _config(options: argparse.Namespace) -> "ServeConfig":
    from vitrail.serve.config import ServeConfig  # noqa: PLC0415

    values = {
        "max_batch": options.max_batch,
        "batch_wait": None if options.batch_wait is None else options.batch_wait / 1000,
        "max_delay": None if options.max_delay is None else options.max_delay / 1000,
        "max_bytes": None if options.max_mb is None else int(options.max_mb * (1 << 20)),
        "max_pixels": options.max_pixels,
        "decoders": options.decoders,
        "decode_seconds": options.decode_seconds,
        "min_rate": options.min_rate,
        "timeout": options.timeout,
        "url_hosts": None if options.allow_urls is None else _hosts(options.allow_urls),
        "allowed_hosts": None if options.allow_host is None else tuple(options.allow_host),
        "api_key": _key(options.api_key_file),
        "certificate": options.tls_certificate,
        "private_key": options.tls_key,
    }
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    config = ServeConfig(host=options.host, port=options.port, workers=options.workers, **given)
    if config.certificate is not None and config.private_key is not None:
        _check_certificate(config.certificate, config.private_key)
    return config


def _hosts(text: str) -> tuple[str, ...]:
    if not (hosts := split_names(text)):
        raise ConfigError("--allow-urls is empty; give hosts separated by commas: --allow-urls example.org")
    return hosts


def _check_certificate(certificate: str, key: str) -> None:
    """Checks the files before any worker starts."""
    try:
        # An empty password: a service has nobody to ask for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except FileNotFoundError:
        return  # the supervisor says which one
    except OSError as error:  # SSLError is one
        why = getattr(error, "reason", None) or error.strerror
        raise ConfigError(
            f"{certificate} and {key} are not a certificate and its private key in PEM, without a password ({why})"
        ) from error


def _key(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(KEY)
    try:
        key = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file; it must contain the API key") from error
    if not key:
        raise ConfigError(f"{path} is empty; it must contain the API key")
    return key
