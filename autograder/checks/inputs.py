"""Fresh inputs for checks: numbers whose sums are exact, so that a difference is a mistake and not a rounding."""

from __future__ import annotations

from typing import Any

import numpy as np


def seed(rng: np.random.Generator) -> int:
    """A seed to send to the ranks, below 2**31."""
    return int(rng.integers(2**31))


def eighths(rng: np.random.Generator, shape: Any, limit: int = 32) -> np.ndarray:
    """Multiples of 1/8 from -limit/8 to limit/8, float32: bf16 holds them exactly up to 32, float32 their sums."""
    return np.asarray(rng.integers(-limit, limit + 1, shape) / 8, np.float32)
