"""nbgrader's side: what is handed in and released, what is put back before a run, scores and the gradebook."""
