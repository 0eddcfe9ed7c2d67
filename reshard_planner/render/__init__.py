"""Rendering: finished values in, text and pictures out. Nothing below the command line imports it."""
