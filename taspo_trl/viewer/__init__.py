"""One self-contained HTML page that shows a run: what happened, what the guidance was, and where the credit went."""

from .write import trajectory_html, write_viewer


__all__ = ["trajectory_html", "write_viewer"]
