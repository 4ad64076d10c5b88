"""Metrics of all workers, as Prometheus reads them."""

import numpy as np

from vitrail.serve.metrics import WIDTH, Metrics


def test_counters_of_workers_are_added_up() -> None:
    rows = np.zeros((2, WIDTH))
    one, two = Metrics(rows, 0), Metrics(rows, 1)
    one.add("images_total", amount=3)
    two.add("images_total", amount=4)
    two.observe("queue_seconds", 0.03)
    assert one.total("images_total") == 7
    assert 'vitrail_queue_seconds_bucket{le="0.025"} 0' in one.text()
    assert 'vitrail_queue_seconds_bucket{le="0.05"} 1' in one.text()
