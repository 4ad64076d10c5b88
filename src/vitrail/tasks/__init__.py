"""Features -> head -> loss, metrics, predictions: one file a task."""
