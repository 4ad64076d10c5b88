"""Artefacts: exported models with their metadata, the engines that run them, and the certificate of an export."""
