"""The tests of the built book and of the extensions that build it."""
