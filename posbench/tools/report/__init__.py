"""Tables, figures and a page of stored evaluations."""
