"""PAC-Bayes bounds for one model under a prior of description lengths; all hold with probability 1 - delta."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from vitrail.report.intervals import scipy_part

_BETAS = tuple(10 ** (power / 8 - 1) for power in range(25))  # of Catoni: 0.1 to 100


def coded_bits(symbols: Sequence[int], levels: int) -> float:
    """Bits of a list of symbols whose length is known: how often each comes, then which of these orders it is."""
    count = len(symbols)
    histogram = levels * math.log2(count + 1)
    orders = math.lgamma(count + 1) - sum(math.lgamma(often + 1) for often in Counter(symbols).values())
    return histogram + orders / math.log(2)


def complexity(bits: float) -> float:
    """The KL of a single model from the prior: ln 2 for each bit of a code that no other code begins with.

    The length of the code is told first, in 2 log2(bits + 1) + 1 bits (Elias gamma).
    """
    return math.log(2) * (bits + 2 * math.log2(bits + 1) + 1)


def source_form(error: float, kl: float, count: int, delta: float) -> float:
    """The form of the textbook: error + sqrt((KL + log(2 n / delta)) / (2 (n - 1)))."""
    return error + math.sqrt((kl + math.log(2 * count / delta)) / (2 * (count - 1)))


def kl_inverse(error: float, kl: float, count: int, delta: float) -> float:
    """The largest p with kl(error, p) <= (KL + ln(2 sqrt(n) / delta)) / n (Maurer 2004, cs/0411099)."""
    room = (kl + math.log(2 * math.sqrt(count) / delta)) / count

    def excess(p: float) -> float:
        return bernoulli_kl(error, p) - room

    almost = 1 - 1e-12
    if excess(almost) <= 0:
        return 1.0
    return float(scipy_part("optimize").brentq(excess, min(max(error, 1e-12), almost), almost))


def catoni(error: float, kl: float, count: int, delta: float) -> float:
    """Catoni's bound (0712.0248), the best of 25 values of its parameter, each with its part of delta."""
    room = (kl + math.log(len(_BETAS) / delta)) / count
    found = [(1 - math.exp(-beta * error - room)) / (1 - math.exp(-beta)) for beta in _BETAS]
    return min(1.0, *found)


def bernoulli_kl(q: float, p: float) -> float:
    """The divergence of a coin q from a coin p, in nats."""
    special = scipy_part("special")
    return float(special.rel_entr(q, p) + special.rel_entr(1 - q, 1 - p))


Bound = Callable[[float, float, int, float], float]
BOUNDS: Mapping[str, Bound] = {"source": source_form, "kl": kl_inverse, "catoni": catoni}
