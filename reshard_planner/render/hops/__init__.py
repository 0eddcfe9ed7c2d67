"""The picture of transfers: who sends what to whom over what, as graphviz DOT."""
