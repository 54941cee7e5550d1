"""For those who write lessons: find an exercise's parts, start a new lesson, see what a draft still lacks."""
