"""The hop diagram: who sends what to whom over what, as graphviz DOT."""
