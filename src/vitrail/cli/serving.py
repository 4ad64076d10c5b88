"""The verb serve: a model as an HTTP service with a page."""

import argparse
import os
import ssl
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError, Notice

if TYPE_CHECKING:
    from vitrail.deploy.calibration import Calibration
    from vitrail.deploy.engine import Engine
    from vitrail.deploy.serve_model import Served

KEY = "VITRAIL_API_KEY"


def add_serve(verb: argparse.ArgumentParser) -> None:
    """The options of `vitrail serve`."""
    verb.add_argument(
        "model", help="an artefact of `vitrail export`, a folder of them, a run, a checkpoint, or `packaged`"
    )
    verb.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1: this machine alone)")
    verb.add_argument("--port", type=int, default=8080, help="default 8080; 0 for any that is free")
    verb.add_argument("--workers", type=int, default=1, help="processes, each with the model (default 1)")
    verb.add_argument("--threads", type=int, help="of each worker's engine (default: the cores, shared out)")
    verb.add_argument("--explain", metavar="RUN", help="the run or checkpoint behind an artefact, for explanations")
    verb.add_argument(
        "--calibrate",
        metavar="DATA",
        help="labelled pictures to fit the confidence to (default: as exported, or by the run's own validation)",
    )
    verb.add_argument("--max-batch", metavar="N", type=int, help="pictures computed together (default 32)")
    verb.add_argument("--batch-wait", metavar="MS", type=float, help="the longest wait for company (default 5)")
    verb.add_argument("--max-delay", metavar="MS", type=float, help="a longer queue answers 503 (default 2000)")
    verb.add_argument("--max-mb", metavar="MB", type=float, help="of one request (default 16)")
    verb.add_argument("--max-pixels", metavar="N", type=int, help="of one picture (default 25,000,000)")
    verb.add_argument("--timeout", metavar="S", type=float, help="for one request (default 15)")
    verb.add_argument(
        "--allow-urls",
        metavar="HOSTS",
        help="fetch pictures by address from these hosts, such as example.org,*.images.example.org (default: none)",
    )
    verb.add_argument("--api-key-file", metavar="FILE", type=Path, help=f"a file with the key to ask for; or set {KEY}")
    verb.add_argument("--tls-certificate", metavar="PEM", help="serve https; with --tls-key")
    verb.add_argument("--tls-key", metavar="PEM")


def serve(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or Ctrl-C; SIGHUP swaps the model."""
    from vitrail.deploy.serve import serve as start  # noqa: PLC0415
    from vitrail.deploy.serve_config import LOOPBACK, ServeConfig  # noqa: PLC0415

    asked = {
        "max_batch": options.max_batch,
        "batch_wait": None if options.batch_wait is None else options.batch_wait / 1000,
        "max_delay": None if options.max_delay is None else options.max_delay / 1000,
        "max_bytes": None if options.max_mb is None else int(options.max_mb * (1 << 20)),
        "max_pixels": options.max_pixels,
        "timeout": options.timeout,
        "url_hosts": None if options.allow_urls is None else _hosts(options.allow_urls),
        "api_key": _key(options.api_key_file),
        "certificate": options.tls_certificate,
        "private_key": options.tls_key,
    }
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    config = ServeConfig(host=options.host, port=options.port, workers=options.workers, **given)
    if config.certificate is not None and config.private_key is not None:
        _check_certificate(config.certificate, config.private_key)
    if config.host not in LOOPBACK and config.api_key is None:
        warnings.warn(
            f"anyone who reaches {config.host} may use this service: there is no API key", Notice, stacklevel=1
        )
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"--threads is {options.threads}; it must be 1 or more")
    threads = options.threads or max(1, (os.cpu_count() or 1) // config.workers)
    opening = Opening(model=options.model, explain=options.explain, calibrate=options.calibrate, threads=threads)

    def ready(address: str, about: str) -> None:
        print(f"{about}\n{address} (Ctrl-C ends it)")  # noqa: T201
        sys.stdout.flush()

    start(opening, config, on_ready=ready)


def _hosts(text: str) -> tuple[str, ...]:
    if not (hosts := tuple(word.strip() for word in text.split(",") if word.strip())):
        raise ConfigError("--allow-urls names no host; name some, separated by commas: --allow-urls example.org")
    return hosts


def _check_certificate(certificate: str, key: str) -> None:
    """Refuses files that no worker could serve https with, before all of them die of it."""
    try:
        # The password stands for none: a service has nobody to ask.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except FileNotFoundError:
        return  # which of them is told by the service itself
    except OSError as error:  # that of SSL is one
        why = getattr(error, "reason", None) or error.strerror
        raise ConfigError(
            f"{certificate} and {key} are no certificate and its private key, without a password, as PEM ({why})"
        ) from error


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(KEY)
    try:
        key = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no text; it should hold the API key") from error
    if not key:
        raise ConfigError(f"{file} is empty; it should hold the API key")
    return key


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a worker opens the model: engine, explanations, calibration; called again when the model is swapped."""

    model: str
    explain: str | None = None
    calibrate: str | None = None
    threads: int | None = None

    def __call__(self) -> "Served":
        """All of it, ready for use."""
        import torch  # noqa: PLC0415

        from vitrail.cli.serving_explain import SaliencyExplainer  # noqa: PLC0415
        from vitrail.deploy.engine import is_artefact, open_engine  # noqa: PLC0415
        from vitrail.deploy.serve_model import Served  # noqa: PLC0415
        from vitrail.training.trained import open_trained  # noqa: PLC0415

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        engine = open_engine(self.model, open_run=open_trained, threads=self.threads)
        source = self.explain or (None if is_artefact(self.model) else self.model)
        # A second copy of the weights: an explanation hooks into its model while the engine computes.
        explainer = None if source is None else SaliencyExplainer(open_trained(source))
        if explainer is not None and explainer.trained.task.classes != engine.labels:
            raise ConfigError(f"{source} cannot explain {self.model}: their classes are not the same")
        return Served(engine=engine, calibration=self._calibration(engine, source), explainer=explainer)

    def _calibration(self, engine: "Engine", run: str | None) -> "Calibration":
        """By the pictures that are named; else as the artefact says itself; else by the run's validation."""
        from vitrail.cli.serving_calibration import calibrated, validated  # noqa: PLC0415

        if self.calibrate is not None:
            return calibrated(engine, self.calibrate)
        if engine.card.calibration.images or run is None:
            return engine.card.calibration
        return validated(engine, run)
