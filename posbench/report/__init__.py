"""Reports: tables, figures and a page from the rows of evaluations."""
