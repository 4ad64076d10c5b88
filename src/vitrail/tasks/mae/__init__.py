"""Masked autoencoding: learning from images without labels."""

from vitrail.tasks.mae.masked import MAE as MAE
from vitrail.tasks.mae.masked import MAEConfig as MAEConfig
