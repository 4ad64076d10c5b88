"""Hosts that images may be fetched from, and public addresses."""

import ipaddress

import pytest

from vitrail.errors import ConfigError
from vitrail.serve.config import ServeConfig
from vitrail.serve.hosts import Host, is_public


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07::1", True),
        ("64:ff9b::5db8:d70e", True),  # the first, as NAT64 writes it
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b:1::1", False),
        ("2002:a00:1::1", False),
        ("2001:db8::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) == public


def test_hosts_with_and_without_a_port() -> None:
    assert Host.parse("Example.ORG") == Host("example.org")
    assert Host.parse("*.example.org:8000") == Host("example.org", subdomains=True, port=8000)
    assert Host.parse("[2001:DB8:0::1]:80") == Host("2001:db8::1", port=80)
    assert Host.parse("example.org").allows("example.org", 443, "https")
    assert not Host.parse("example.org").allows("example.org", 80, "https")
    assert Host.parse("*.example.org").allows("a.b.example.org", 80, "http")
    assert not Host.parse("*.example.org").allows("example.org", 80, "http")


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "*.org",
        "*.127.0.0.1",
        "http://example.org",
        "a b",
        "",
        "[::1",
        "[1.2]",
        "example.org:0",
        "example.org:70000",
    ],
)
def test_hosts_that_are_not_valid(text: str) -> None:
    with pytest.raises(ConfigError, match="host to fetch images from"):
        ServeConfig(url_hosts=(text,))
