"""Machines and models: what GPUs and their links give (`cluster`), and what a model's shape costs (`model`).

The numbers of the book and its notebooks come from here. It needs nothing but the standard library.
"""
