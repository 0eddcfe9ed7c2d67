"""What every strategy is given, and the contract that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reshard_planner.bounds import Bound
from reshard_planner.demand import Demand, Geometry
from reshard_planner.errors import UnsupportedError
from reshard_planner.routing.forest import Forest
from reshard_planner.spec import ReshardSpec
from reshard_planner.topology import Ports


@dataclass(frozen=True, slots=True)
class Problem:
    """A spec, taken apart.

    Attributes:
        spec: what is compiled.
        ports: capacities per rank.
        geometries: tensors that share their atoms.
        demands: classes of all geometries.
        bound: least times.
    """

    spec: ReshardSpec
    ports: Ports
    geometries: tuple[Geometry, ...]
    demands: tuple[Demand, ...]
    bound: Bound

    def check_nics(self, src: int, dst: int) -> None:
        """Check that two ranks can exchange bytes over the network themselves, as a strategy has them do.

        Raises:
            UnsupportedError: if one of them has no NIC.
        """
        without = [rank for rank in (src, dst) if self.ports.nic_group[rank] < 0]
        if without:
            lacks = f"rank {without[0]} has no NIC" if len(without) == 1 else "neither has a NIC"
            raise UnsupportedError(
                f"by the rules of the strategy {self.spec.options.strategy!r} rank {src} sends to rank {dst}"
                f" over the network, but {lacks}; expected a NIC for both, or the strategy 'optimal', which"
                " takes any holder and uses neighbours' NICs"
            )


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to route.

    Attributes:
        name: as options and the command line spell it.
        route: forests that together fill every destination tile of every tensor exactly once; each
            tensor is in one forest, and rows of a tree carry the same piece except copies out of
            scratch, which may carry a part.
        claims_least: whether plans move the least payload within the staging budget, which is then
            checked; other strategies report their figures.
        summary: one line for help texts.
    """

    name: str
    route: Callable[[Problem], list[Forest]]
    claims_least: bool
    summary: str
