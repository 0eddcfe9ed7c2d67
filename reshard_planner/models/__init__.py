"""Models: their parameters, and how training and inference frameworks store them."""
