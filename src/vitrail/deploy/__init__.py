"""Shipping a model: artefacts with a certificate, int8, engines that run them, and what is fastest on this machine."""
