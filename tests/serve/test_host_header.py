"""Which host names requests may be addressed to."""

import asyncio

import pytest
from support.small_service import Reply, app, ask

from vitrail.errors import ConfigError
from vitrail.serve.config import ServeConfig
from vitrail.serve.host_header import AllowedHosts


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("localhost.:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]", True),
        ("[::1]:8080", True),
        ("[0:0:0:0:0:0:0:1]:8080", True),
        ("192.0.2.1:80", True),  # bound
        ("10.1.2.3:8080", True),  # the connection's own
        ("[::ffff:10.1.2.3]", True),
        ("10.1.2.4", False),
        ("api.example.org", True),
        ("a.b.images.example.org:443", True),
        ("images.example.org", False),
        ("badimages.example.org", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("evil.example:80@localhost", False),
        ("localhost:80:80", False),
        ("localhost/", False),
        ("localhost, evil.example", False),
        ("2130706433", False),
        ("[::1", False),
        ("", False),
        ("\xe4", False),
    ],
)
def test_names(header: str, allowed: bool) -> None:
    hosts = AllowedHosts("192.0.2.1", ("api.example.org", "*.Images.example.org"))
    assert hosts.allows(header, "10.1.2.3") == allowed


def test_every_name_or_none_at_all() -> None:
    assert AllowedHosts("0.0.0.0", ("*",)).allows("evil.example", None)
    assert AllowedHosts("0.0.0.0").allows(None, None), "a probe with HTTP/1.0"
    assert not AllowedHosts("0.0.0.0").allows("10.1.2.3", None)


@pytest.mark.parametrize("name", ["http://example.org", "example.org:80", "*.", "**", "a.*.org", "", "[::1", "a b"])
def test_names_that_are_not_valid(name: str) -> None:
    with pytest.raises(ConfigError, match="host name"):
        ServeConfig(allowed_hosts=(name,))


def get(path: str, host: str, **changes: object) -> Reply:
    return asyncio.run(ask(app(**changes), path, host=host))


@pytest.mark.parametrize("path", ["/", "/model", "/healthz", "/readyz", "/metrics", "/none"])
@pytest.mark.parametrize("key", [None, "k" * 16])
def test_rebinding_gets_nothing(path: str, key: str | None) -> None:
    reply = get(path, "evil.example", api_key=key)
    assert reply.status == 421
    assert "--allow-host" in reply.data["error"]


def test_allowed_names_get_an_answer() -> None:
    assert get("/model", "localhost:1234").status == 200
    assert get("/model", "models.example.org").status == 421
    assert get("/model", "models.example.org", allowed_hosts=("*.example.org",)).status == 200
    assert get("/model", "evil.example", allowed_hosts=("*",)).status == 200
