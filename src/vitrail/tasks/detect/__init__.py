"""Detection: boxes with classes, found as a set, without suppression of duplicates."""

from vitrail.tasks.detect.detection import Detect as Detect
from vitrail.tasks.detect.detection import DetectConfig as DetectConfig
