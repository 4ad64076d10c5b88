"""Kinds of targets, one file each: how they are read, moved with the pixels, mixed, checked and shown.

A schema maps field names to kinds; an empty schema is an unlabelled dataset.
To add a kind: one file here with a subclass of `Target`, and one line below.
"""

from vitrail.data.targets.boxes_target import BoxesTarget as BoxesTarget
from vitrail.data.targets.class_target import ClassTarget as ClassTarget
from vitrail.data.targets.depth_target import DepthTarget as DepthTarget
from vitrail.data.targets.labels_target import LabelsTarget as LabelsTarget
from vitrail.data.targets.mask_target import MaskTarget as MaskTarget
from vitrail.data.targets.numbers_target import NumbersTarget as NumbersTarget
from vitrail.data.targets.target import Column as Column
from vitrail.data.targets.target import Schema as Schema
from vitrail.data.targets.target import Target as Target
