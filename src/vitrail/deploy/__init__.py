"""Shipping a model: artefacts with a certificate, int8, engines that run them, tables of predictions, benchmarks."""
