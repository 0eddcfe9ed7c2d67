"""The job of examples/launched.py on Ray: one actor per rank, in a placement group.

Ray gives actors no ranks. The driver asks each on which node it runs, numbers them so that those of a node
follow one another, and hands them the variables that torchrun would set. (Ray Train sets these by itself.)

Started plainly it makes a Ray cluster of this machine alone, and ends it. With ``--address auto`` it joins
the cluster that ``ray start`` has made.
"""

import argparse
import socket
import sys
from collections import Counter

import launched
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from reshard_executors import rank_info

PROCESSES = len(launched.spec.ranks)


@ray.remote
class Process:
    """One process of the job."""

    def place(self) -> tuple[str, str, int]:
        """The node that this runs on, its address, and a port that is free there."""
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return ray.get_runtime_context().get_node_id(), address, probe.getsockname()[1]

    def play(self, variables: dict[str, str]) -> list[str]:
        """Be the rank that the variables say."""
        return launched.play(rank_info(variables))


def variables_of(places: list[tuple[str, str, int]]) -> list[dict[str, str]]:
    """What torchrun would set, for processes in order of their ranks."""
    local_sizes = Counter(node for node, _, _ in places)
    before: Counter[str] = Counter()
    found = []
    for rank, (node, _, _) in enumerate(places):
        found.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": str(before[node]),
                "LOCAL_WORLD_SIZE": str(local_sizes[node]),
                "MASTER_ADDR": places[0][1],
                "MASTER_PORT": str(places[0][2]),
            }
        )
        before[node] += 1
    return found


def main() -> int:
    """Start the actors, number them, and have them play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--address", help="of a Ray cluster, such as auto")
    address = parser.parse_args().address
    if address is None:
        # loopback alone, and nothing that watches
        ray.init(
            num_cpus=PROCESSES, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False
        )
    else:
        ray.init(address=address)
    kind = "GPU" if ray.cluster_resources().get("GPU", 0) >= PROCESSES else "CPU"
    group = placement_group([{kind: 1}] * PROCESSES, strategy="PACK")
    ray.get(group.ready())
    actors = [
        Process.options(
            num_cpus=int(kind == "CPU"),
            num_gpus=int(kind == "GPU"),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
        ).remote()
        for bundle in range(PROCESSES)
    ]
    places = ray.get([actor.place.remote() for actor in actors])
    ranked = sorted(range(PROCESSES), key=lambda at: (places[at][0], at))
    variables = variables_of([places[at] for at in ranked])
    parts = [actors[at].play.remote(own) for at, own in zip(ranked, variables, strict=True)]
    for lines in ray.get(parts):
        print("\n".join(lines), end="\n" if lines else "")
    remove_placement_group(group)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
