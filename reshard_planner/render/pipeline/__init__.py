"""The pipeline diagram: what moves in each slot, and predicted and measured timelines."""
