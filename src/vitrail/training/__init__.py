"""Training: one loop for every task, on a laptop, one GPU or many machines."""
