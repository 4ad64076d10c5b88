"""Hosts that images may be fetched from, and which IP addresses are public."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from vitrail.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(\*\.)?([a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
_UNICAST = ipaddress.IPv6Network("2000::/3")
_6TO4 = ipaddress.IPv6Network("2002::/16")  # tunnels to any IPv4 address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # the last 32 bits are an IPv4 address


@dataclass(frozen=True)
class Host:
    """A host name, all `subdomains` of a name, or an IP address; without a port, the default of http or https."""

    name: str
    subdomains: bool = False
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `example.org`, `*.example.org`, `example.org:8000`, `192.0.2.1` or `[2001:db8::1]:8000`."""
        match = _ENTRY.fullmatch(text)
        if match is None or (match[3] and not 0 < int(match[3]) < 1 << 16):
            raise _invalid(text, "not a valid host")
        address = parse_ip(match[2].strip("[]"))
        if address is None and match[2].startswith("["):
            raise _invalid(text, "not a valid host")
        if match[1] and (address is not None or "." not in match[2]):
            raise _invalid(text, "too broad a host")
        name = match[2].lower() if address is None else str(address)
        return cls(name, subdomains=bool(match[1]), port=int(match[3]) if match[3] else None)

    def allows(self, name: str, port: int, scheme: str) -> bool:
        """Whether a URL with this host name, port and scheme may be fetched."""
        matches = name.endswith(f".{self.name}") if self.subdomains else name == self.name
        return matches and port == (self.port or PORTS[scheme])


def parse_ip(name: str) -> Address | None:
    """The IP address that a host name spells out; None for a name that needs DNS."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address is a public unicast address: not private, local, reserved or multicast."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _UNICAST and address not in _6TO4 and address.is_global


def _invalid(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is {why} to fetch images from; use names such as example.org, *.images.example.org (all its "
        "subdomains) or 192.0.2.1:8000"
    )
