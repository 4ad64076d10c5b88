"""Semantic segmentation: a class for each pixel."""

from vitrail.tasks.segment.segmentation import Segment as Segment
from vitrail.tasks.segment.segmentation import SegmentConfig as SegmentConfig
