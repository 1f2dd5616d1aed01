"""Learning curves of runs, as charts and as text for the terminal; and the standard of the pages that varla writes."""
