"""Several tasks on one backbone."""

from vitrail.tasks.many.many_config import ManyConfig as ManyConfig
from vitrail.tasks.many.many_heads import Many as Many
