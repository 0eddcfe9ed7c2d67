"""Pictures of layouts: who stores what of a tensor, before and after, as SVG and as text."""
