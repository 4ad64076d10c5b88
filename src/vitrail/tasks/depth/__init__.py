"""Depth: a distance for each pixel."""

from vitrail.tasks.depth.depth_estimation import Depth as Depth
from vitrail.tasks.depth.depth_estimation import DepthConfig as DepthConfig
