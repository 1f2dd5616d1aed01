"""Learning curves, drawn from the metrics of runs: as charts for files, and as text for the terminal."""
