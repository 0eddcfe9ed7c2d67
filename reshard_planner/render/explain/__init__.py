"""Explaining: why each byte of a tensor takes its way, in sentences and as data."""
