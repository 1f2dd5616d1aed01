"""The report of the reproduction: one page, and the pages for a code host. Drawn from committed records alone."""
