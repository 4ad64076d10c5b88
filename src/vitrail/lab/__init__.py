"""The theory as experiments: each claim with a prediction that can fail, an interval over seeds, and a verdict.

    print(vitrail.lab("temperature", quick=True))

An experiment is one file here and one line below; `experiment.py` says what it has.
"""

from vitrail.callable_module import make_callable
from vitrail.errors import ConfigError, nearest
from vitrail.lab.approximation import Approximation
from vitrail.lab.attention_entropy import AttentionEntropy
from vitrail.lab.attention_matrix import AttentionMatrix
from vitrail.lab.attention_rank import AttentionRank
from vitrail.lab.cost_model import CostModel
from vitrail.lab.data_size import DataSize
from vitrail.lab.diagonal_query import DiagonalQuery
from vitrail.lab.experiment import Experiment
from vitrail.lab.fingerprints import fingerprint
from vitrail.lab.kernel_regression import KernelRegression
from vitrail.lab.long_range import LongRange
from vitrail.lab.low_pass import LowPass
from vitrail.lab.norm_placement import NormPlacement
from vitrail.lab.pac_bayes import PacBayes
from vitrail.lab.position_spectra import PositionSpectra
from vitrail.lab.rank_collapse import RankCollapse
from vitrail.lab.receptive_field import ReceptiveField
from vitrail.lab.robustness import Robustness
from vitrail.lab.scaling_laws import ScalingLaws
from vitrail.lab.shape_bias import ShapeBias
from vitrail.lab.smallest_object import SmallestObject
from vitrail.lab.temperature import Temperature

__all__ = ["EXPERIMENTS", "Experiment", "chosen"]

EXPERIMENTS: tuple[Experiment, ...] = (
    AttentionMatrix(),
    AttentionRank(),
    RankCollapse(),
    Temperature(),
    DiagonalQuery(),
    LowPass(),
    CostModel(),
    NormPlacement(),
    SmallestObject(),
    ReceptiveField(),
    KernelRegression(),
    PositionSpectra(),
    DataSize(),
    Robustness(),
    ShapeBias(),
    LongRange(),
    ScalingLaws(),
    PacBayes(),
    AttentionEntropy(),
    Approximation(),
)


def chosen(name: str) -> tuple[Experiment, ...]:
    """The experiment of a name, or all of them; the fingerprints of their code are taken now, while it is what runs."""
    found = tuple(experiment for experiment in EXPERIMENTS if name in (experiment.name, "all"))
    if not found:
        names = [*(experiment.name for experiment in EXPERIMENTS), "all"]
        raise ConfigError(f"unknown experiment {name!r}; {nearest(name, names)}")
    for experiment in found:
        fingerprint(experiment)
    return found


make_callable(__name__)
