"""Hostile submissions, each with what it may get: as data."""
