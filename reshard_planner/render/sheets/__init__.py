"""Sheets that graphviz paints as they are: where all stands on them is worked out here."""
