"""The paper's claims, each run and judged: `python -m reproduction list | run | report`, from the repository root.

`items` lists the experiments. An item (`claims`) declares claims, each with the paper's value and a rule for the
verdict, and the runs (`runs`) it needs at each preset. `runner` makes the runs, `records` keeps their results, and
`report` draws a page and the documents from the records. This package imports varla; varla never imports it.
"""
