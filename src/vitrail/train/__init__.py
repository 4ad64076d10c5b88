"""Training: one loop for every task, on a laptop, one GPU or many machines."""

import sys
from types import ModuleType

from vitrail.train.run import Run, train
from vitrail.train.verify import verify_resume

__all__ = ["Run", "train", "verify_resume"]


class _Verb(ModuleType):
    """A package that is its main function too: `vitrail.train(data)`, whatever was imported before."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Verb
