"""What several tests use: made-up lessons and classes, a browser, a formgrader server."""
