"""For those who write lessons."""
