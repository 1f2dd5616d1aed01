"""Experiments: the demo, and every claim of the paper as something that can be run and judged (`varla reproduce`).

`items` lists them. An item (`claims`) declares claims, each with the paper's value and a rule for the verdict, and the
runs (`runs`) it needs at each preset; `runner` works those off, and `records` keeps what came out.
"""
