"""Lesson 14: a layer whose experts are spread over ranks must be the layer with all experts in one process.

The oracles run in this process: numpy for the router and the plan, torch's own autograd through a layer that holds all
experts and goes token by token for everything else. Probabilities are drawn so that no two that are compared for a
choice come near each other. What was sent is read from the ledger.
"""
