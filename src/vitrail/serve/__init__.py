"""A model as an HTTP service with a page: supervisor, workers, batching, limits, uploads, explanations."""

from vitrail.callable_module import make_callable

make_callable(__name__)
