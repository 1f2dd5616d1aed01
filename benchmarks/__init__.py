"""Measurements. Each module or package is a command; results are JSON files in results/."""
