"""Reports: titled sections that print to a terminal, to JSON and to one HTML file without network.

report = Report("a title", (Facts("Totals", {"MACs": 363_000_000}, {"MACs": "si"}),))
print(report); report.to_json("report.json"); report.to_html("report.html")
"""

from vitrail.report.markup import page, section_html
from vitrail.report.metric import Figure, Metric
from vitrail.report.report import Report
from vitrail.report.sections import (
    Code,
    Facts,
    Gallery,
    Group,
    Line,
    Matrix,
    Picture,
    Section,
    Shot,
    Table,
    Text,
)
from vitrail.report.values import Unit, Value, show

__all__ = [
    "Code",
    "Facts",
    "Figure",
    "Gallery",
    "Group",
    "Line",
    "Matrix",
    "Metric",
    "Picture",
    "Report",
    "Section",
    "Shot",
    "Table",
    "Text",
    "Unit",
    "Value",
    "page",
    "section_html",
    "show",
]
