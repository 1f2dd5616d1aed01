"""The report, drawn from records alone: one HTML page, and Markdown pages for the repository."""
