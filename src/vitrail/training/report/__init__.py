"""The report of a training run: one HTML file without network, and the same in short for a terminal and as JSON.

outcome = Outcome(title="...", history=history, figures=figures, sections=task.sections(results), ...)
write_report(outcome, "runs/demo/report.html")
summary(outcome).print()
"""

from vitrail.training.report.model_name import name_model
from vitrail.training.report.outcome import Outcome, outcome_page, summary, write_report

__all__ = ["Outcome", "name_model", "outcome_page", "summary", "write_report"]
