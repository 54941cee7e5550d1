"""Right answers to lesson NN, written differently."""

from __future__ import annotations
