"""What a check is made of: expectations, runs on ranks, hints, inputs and instruments."""
