"""Clusters as people describe them: text and pictures."""
