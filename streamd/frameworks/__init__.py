"""Streams for each framework. No framework is imported before a function that needs it is called."""
