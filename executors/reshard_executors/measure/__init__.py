"""Measure: ranks send to one another, and find out what the ports of a cluster really reach."""
