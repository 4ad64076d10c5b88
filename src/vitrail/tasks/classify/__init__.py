"""Classification: one class an image, or several labels."""

from vitrail.tasks.classify.one_class import Classify as Classify
from vitrail.tasks.classify.one_class import ClassifyConfig as ClassifyConfig
