"""What a model learns, one file or folder a task: loss, metrics, answers, reports. A new task is one line here."""

from vitrail.tasks import classify as classify
from vitrail.tasks import depth as depth
from vitrail.tasks import detect as detect
from vitrail.tasks import distill as distill
from vitrail.tasks import mae as mae
from vitrail.tasks import many as many
from vitrail.tasks import regress as regress
from vitrail.tasks import segment as segment
from vitrail.tasks.task import TaskConfig as TaskConfig
