"""The cheapest way to reach every node of a small directed graph from one root."""

from __future__ import annotations

from collections.abc import Sequence

ROOT_NODE = 0
"""The node that every other one is reached from."""


def cheapest_parents(cost: Sequence[Sequence[float]]) -> list[int]:
    """Parent of every node in the tree of least total cost; the root's own parent is -1.

    Algorithm of Chu, Liu and Edmonds: every node takes its cheapest parent; a cycle becomes one node.

    Args:
        cost: ``cost[a][b]`` of reaching node b from node a, for all pairs; node 0 is the root.
    """
    nodes = range(len(cost))
    parent = [-1, *(min((a for a in nodes if a != b), key=lambda a: cost[a][b]) for b in nodes[1:])]
    cycle = _find_cycle(parent)
    if not cycle:
        return parent
    inside = set(cycle)
    outside = [node for node in nodes if node not in inside]
    # the last node of the smaller graph stands for the cycle
    entries = {a: min(cycle, key=lambda b: cost[a][b] - cost[parent[b]][b]) for a in outside}
    exits = {b: min(cycle, key=lambda a: cost[a][b]) for b in outside}
    smaller = [
        [*(cost[a][b] for b in outside), cost[a][entries[a]] - cost[parent[entries[a]]][entries[a]]]
        for a in outside
    ]
    smaller.append([*(cost[exits[b]][b] for b in outside), 0.0])
    found = cheapest_parents(smaller)
    for place, node in enumerate(outside[1:], start=1):
        above = found[place]
        parent[node] = exits[node] if above == len(outside) else outside[above]
    entering = outside[found[-1]]
    parent[entries[entering]] = entering
    return parent


def _find_cycle(parent: Sequence[int]) -> list[int]:
    """Some cycle of parents; empty if there is none."""
    done = {ROOT_NODE}
    for start in range(1, len(parent)):
        path: list[int] = []
        node = start
        while node not in done:
            done.add(node)
            path.append(node)
            node = parent[node]
        if node in path:
            return path[path.index(node) :]
    return []
