"""Which host names a request may be addressed to.

A page on another site can give its own name the address of this machine (DNS rebinding): a browser then sends it here,
with that name as `Host`, and lets the page read the answer. So names are allowed one by one. An IP address cannot be
rebound; that of the connection itself is allowed, since orchestrators probe a container by its address.

Starlette's TrustedHostMiddleware is not used: it does not know the address of the connection, refuses HTTP/1.0 probes
without a `Host`, and answers past the metrics, the log and the JSON errors of this service.
"""

import re
from collections.abc import Iterable

from vitrail.errors import ConfigError
from vitrail.serve.hosts import parse_ip

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_ENTRY = re.compile(rf"\*|(?:\*\.)?{_NAME}|[0-9a-f:.]+|\[[0-9a-f:.]+\]", re.IGNORECASE)
_HEADER = re.compile(rf"({_NAME})\.?(?::[0-9]*)?|\[([0-9a-f:.]+)\](?::[0-9]*)?", re.IGNORECASE)


class AllowedHosts:
    """The names of this service: those of the loopback device, the address it is bound to, and the given ones.

    Args:
        bound: The address that the service listens on.
        names: `example.org`, `*.example.org` (all its subdomains), an IP address, or `*` (every name).

    """

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        given = [name.lower() for name in names]
        for name in given:
            if _ENTRY.fullmatch(name) is None or (":" in name and parse_ip(name.strip("[]")) is None):
                raise ConfigError(
                    f"{name!r} is not a valid host name; use names without a port, such as example.org, "
                    "*.example.org (all its subdomains) or * (every name)"
                )
        self._any = "*" in given
        self._suffixes = tuple(name[1:] for name in given if name.startswith("*."))
        self._names = {_plain(name) for name in (*LOOPBACK, bound.lower(), *given)}

    def allows(self, header: str | None, local: str | None) -> bool:
        """Whether a request with this `Host` may be answered; `local` is the address that the connection came in on.

        Browsers always send a `Host`, and HTTP/1.1 requires it; probes with HTTP/1.0 may have none.
        """
        if self._any or header is None:
            return True
        match = _HEADER.fullmatch(header)
        if match is None:
            return False
        name = _plain((match[1] or match[2]).lower())
        if name in self._names or (self._suffixes and name.endswith(self._suffixes)):
            return True
        return parse_ip(name) is not None and local is not None and name == _plain(local)


def _plain(name: str) -> str:
    """A name, or an IP address in its usual form, without brackets and zone."""
    text = name.strip("[]").partition("%")[0]
    address = parse_ip(text)
    if address is None:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)
