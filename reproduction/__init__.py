"""The paper, run and judged: every claim as something that is measured."""
