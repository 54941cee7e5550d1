"""Known answers to the exercises, right and wrong, as replacements for one answer cell."""
