"""What the family is good for: evaluations that the field knows, one module each, run from the root of a clone."""
