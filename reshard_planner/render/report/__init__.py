"""Reports of plans as single HTML pages."""

from reshard_planner.render.report.alternatives import Alternative
from reshard_planner.render.report.page import report_html

__all__ = ["Alternative", "report_html"]
