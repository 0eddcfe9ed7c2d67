"""Clusters as files describe them: what is known of hosts, GPUs, NICs and switches."""
