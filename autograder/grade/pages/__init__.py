"""What a student gets back: the feedback page, its formulas, and what of a submission it may show."""
