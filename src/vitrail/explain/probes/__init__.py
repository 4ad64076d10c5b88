"""Probes: how well targets can be predicted from the features of each layer."""
