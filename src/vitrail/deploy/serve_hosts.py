"""Which machines pictures may be fetched from: those that the service was told of, and none of its own network."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

from vitrail.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS = {"http": 80, "https": 443}
_ENTRY = re.compile(r"(\*\.)?([a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
_UNICAST = ipaddress.IPv6Network("2000::/3")
_TUNNELS = ipaddress.IPv6Network("2002::/16")  # 6to4: they lead to any IPv4 address
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # NAT64: the last 32 bits are an IPv4 address


@dataclass(frozen=True)
class Host:
    """A name, the names `below` a name, or an address; with a port, or with the usual one of http and https."""

    name: str
    below: bool = False
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`example.org`, `*.example.org`, `example.org:8000`, `192.0.2.1`, `[2001:db8::1]:8000`."""
        found = _ENTRY.fullmatch(text)
        if found is None or (found[3] and not 0 < int(found[3]) < 1 << 16):
            raise _wrong(text, "no host")
        address = named_address(found[2].strip("[]"))
        if address is None and found[2].startswith("["):
            raise _wrong(text, "no host")
        if found[1] and (address is not None or "." not in found[2]):
            raise _wrong(text, "too wide")
        name = found[2].lower() if address is None else str(address)
        return cls(name, below=bool(found[1]), port=int(found[3]) if found[3] else None)

    def holds(self, name: str, port: int, scheme: str) -> bool:
        """Whether it is the host of an address, and the port one of those that it allows."""
        same = name.endswith(f".{self.name}") if self.below else name == self.name
        return same and port == (self.port or PORTS[scheme])


def named_address(name: str) -> Address | None:
    """The address that a host's name is, written out; None for a name that must be looked up."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address belongs to the internet at large: not to a machine, a private network or a group."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast
    if address in _TRANSLATED:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _UNICAST and address not in _TUNNELS and address.is_global


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is {why} to fetch pictures from; name hosts such as example.org, *.images.example.org (all below "
        "it) or 192.0.2.1:8000"
    )
