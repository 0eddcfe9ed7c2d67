"""Price cuts: weights on ports, and the least price at which a class can be brought to all who need it.

Give every port a price per byte. Whatever a plan does, the bytes of a class cost at least the cheapest way
to serve the class, and within a time T all ports together take in no more than T times the sum of price
times rate. So the least prices of all classes over that sum is a time that no plan of least payload beats,
whatever the prices are. The cheapest way falls into parts: an entry for every domain in need, with the
NVLink transfers that follow from it, and the emissions, of which a holding domain makes the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import mul

import numpy as np

from reshard_planner.atoms import Ranks
from reshard_planner.bounds.cut import Port
from reshard_planner.bounds.needs import Ints, JointClass, Needs
from reshard_planner.capacities import Capacities
from reshard_planner.errors import InputError


class Prices:
    """Integer prices of ports, looked up and combined once per set of ranks.

    Args:
        prices: price of every port that has one, positive.
        needs: what must move.
        capacities: rates of the ports.
        restricted: whether only ranks that hold or need the bytes may take part, as in T0. Where none of
            them has a NIC in a domain in need, or in all holding domains, their neighbours may.

    Raises:
        InputError: if a price stands on a port that does not exist.
    """

    def __init__(
        self, prices: Mapping[Port, int], needs: Needs, capacities: Capacities, *, restricted: bool
    ) -> None:
        self._needs = needs
        self._restricted = restricted
        self._ranks = capacities.ranks
        self._pod_of = capacities.pod_of
        size = len(capacities.domain_of)
        groups, pods = len(capacities.nic_rate), len(capacities.uplink)
        by_resource = {
            "nic_in": [0] * groups,
            "nic_out": [0] * groups,
            "nvlink_in": [0] * size,
            "nvlink_out": [0] * size,
            "uplink_in": [0] * pods,
            "uplink_out": [0] * pods,
        }
        rates = {"nic": capacities.nic_rate, "nvlink": capacities.nvlink, "uplink": capacities.uplink}
        self.bytes_per_s = 0
        for (resource, number), price in prices.items():
            column = rates[resource.split("_")[0]]
            if number >= len(column) or not column[number]:
                raise InputError(f"{resource} {number} does not exist; expected a port of the spec's ranks")
            by_resource[resource][number] = price
            self.bytes_per_s += price * column[number]
        group_of = capacities.nic_group
        self._has_nic = [group >= 0 for group in group_of]
        self._nic_in = [by_resource["nic_in"][group] if group >= 0 else 0 for group in group_of]
        self._nic_out = [by_resource["nic_out"][group] if group >= 0 else 0 for group in group_of]
        self._in, self._out = by_resource["nvlink_in"], by_resource["nvlink_out"]
        self._up_in, self._up_out = by_resource["uplink_in"], by_resource["uplink_out"]
        self._uplinks = any(self._up_in) or any(self._up_out)
        self._links = {
            domain: any(self._in[rank] or self._out[rank] for rank in ranks)
            for domain, ranks in capacities.ranks.items()
        }
        self._entries: dict[tuple[int, Ranks], int] = {}
        self._relays: dict[tuple[int, Ranks, int], int] = {}
        self._holding: dict[tuple[int, Ranks, Ranks, int, bool], tuple[int, int | None, int | None]] = {}
        self._arrivals: dict[tuple[Ranks, tuple[int, ...], int], tuple[int, int]] = {}

    def nbytes(self) -> int:
        """Sum over classes of bytes times the least price."""
        needs = self._needs
        if self._uplinks:
            return sum(joint.nbytes * self.of(joint) for joint in needs.classes)
        total = sum(joint.nbytes * self.of(joint) for joint in needs.near_classes)
        rows = np.flatnonzero(~needs.near)
        if not len(rows):
            return total
        # where holders and needers share no domain, the price is made of one part for each of the two
        copies = needs.copies[rows]
        emitting = (needs.holders[rows], copies, needs.holding[rows])
        entering = (needs.needers[rows], needs.needing[rows])
        once, always = _look_up(emitting, self._emitting)
        arriving, relaying = _look_up(entering, self._arriving_at)
        price = arriving + np.minimum(always, once + relaying)
        nbytes: list[int] = needs.nbytes[rows].tolist()
        prices: list[int] = price.tolist()
        priced: int = sum(map(mul, nbytes, prices))
        return total + priced

    def _emitting(self, holders: int, copies: int, holding: int) -> tuple[int, int]:
        """Least price of a first emission and of all, by holders that have no needer near them."""
        needs = self._needs
        joint = JointClass(0, needs.rank_sets[holders], (), needs.domain_sets[holding], ())
        _, once, always = self._held(joint, {}, copies)
        return min(once.values()), min(always.values())

    def _arriving_at(self, needers: int, needing: int) -> tuple[int, int]:
        domains = self._needs.domain_sets[needing]
        return self._arriving(self._needs.rank_sets[needers], domains, len(domains) - 1)

    def of(self, joint: JointClass) -> int:
        """The least price of bringing one byte of a class to all who need it."""
        copies = len(joint.needing_domains)
        needers = self._needs.by_domain(joint.needers)
        total = 0
        once: dict[int, int] = {}
        always: dict[int, int] = {}
        if copies or self._links_in(joint.holder_domains):
            total, once, always = self._held(joint, needers, copies)
        if not copies:
            return total
        if self._uplinks:
            return total + self._over_uplinks(joint, needers, always)
        arriving, relaying = self._arriving(joint.needers, joint.needing_domains, copies - 1)
        return total + arriving + min(*always.values(), min(once.values()) + relaying)

    def _links_in(self, domains: Iterable[int]) -> bool:
        return any(self._links[domain] for domain in domains)

    def _held(
        self, joint: JointClass, needers: Mapping[int, Ranks], copies: int
    ) -> tuple[int, dict[int, int], dict[int, int]]:
        """NVLink within holding domains; per domain, the price of its first emission, and of all."""
        holders = self._needs.by_domain(joint.holders)
        total = 0
        once: dict[int, int] = {}
        always: dict[int, int] = {}
        for helped in (False, True):
            total = 0
            for domain, held in holders.items():
                base, first, every = self._hold(domain, held, needers.get(domain, ()), copies, helped=helped)
                total += base
                if first is not None and every is not None:
                    once[domain], always[domain] = first, every
            if once or not copies:
                break
        return total, once, always

    def _hold(
        self, domain: int, held: Ranks, needers: Ranks, copies: int, *, helped: bool
    ) -> tuple[int, int | None, int | None]:
        """Price within a holding domain, and of its first and of all emissions; None where it cannot emit."""
        key = (domain, held, needers, copies, helped)
        if key not in self._holding:
            lacking = tuple(rank for rank in needers if rank not in held)
            base = self._spread(domain, held, lacking)
            first: int | None = None
            every: int | None = None
            part = {*held, *lacking}
            for rank in self._ranks[domain] if copies else ():
                if not self._has_nic[rank] or (self._restricted and not helped and rank not in part):
                    continue
                price = self._nic_out[rank]
                extra = 0
                if rank not in part and self._links[domain]:
                    extra = self._spread(domain, held, (*lacking, rank)) - base
                first = price + extra if first is None else min(first, price + extra)
                every = copies * price + extra if every is None else min(every, copies * price + extra)
            self._holding[key] = (base, first, every)
        return self._holding[key]

    def _arriving(self, needers: Ranks, domains: tuple[int, ...], relayed: int) -> tuple[int, int]:
        """Price of entering some domains and reaching their needers, and of the relayed copies by one."""
        key = (needers, domains, relayed)
        if key not in self._arrivals:
            ranks = self._needs.by_domain(needers)
            total = sum(self._entry(domain, ranks[domain]) for domain in domains)
            relaying = min(self._relay(domain, ranks[domain], relayed) for domain in domains)
            self._arrivals[key] = (total, relaying)
        return self._arrivals[key]

    def _takers(self, domain: int, needers: Ranks) -> list[int]:
        """Ranks of a domain in need that may take in."""
        ranks = [rank for rank in self._ranks[domain] if self._has_nic[rank]]
        near = [rank for rank in ranks if rank in needers]
        return near if self._restricted and near else ranks

    def _entry(self, domain: int, needers: Ranks) -> int:
        key = (domain, needers)
        if key not in self._entries:
            self._entries[key] = self._enter(domain, needers, needers)
        return self._entries[key]

    def _enter(self, domain: int, needers: Ranks, reached: Ranks) -> int:
        """Least price to enter at a rank that may take in, and to reach some ranks from there."""
        takers = self._takers(domain, needers)
        if not self._links[domain]:
            return min(self._nic_in[rank] for rank in takers)
        return min(
            self._nic_in[rank] + self._spread(domain, (rank,), [other for other in reached if other != rank])
            for rank in takers
        )

    def _relay(self, domain: int, needers: Ranks, copies: int) -> int:
        """Least price for a domain in need to emit some copies, on top of what it takes in anyway."""
        if not copies:
            return 0
        key = (domain, needers, copies)
        if key not in self._relays:
            base = self._entry(domain, needers)
            emitters = self._takers(domain, needers)
            own = [self._nic_out[rank] * copies for rank in emitters if rank in needers]
            least = min(own, default=None)
            for rank in emitters:
                price = self._nic_out[rank] * copies
                if rank in needers or (least is not None and price >= least):
                    continue
                if self._links[domain]:
                    price += self._enter(domain, needers, (*needers, rank)) - base
                least = price if least is None else min(least, price)
            self._relays[key] = 0 if least is None else least
        return self._relays[key]

    def _spread(self, domain: int, known: Sequence[int], reached: Sequence[int]) -> int:
        """Least price over NVLink from any of the ranks that know to all that are to be reached.

        The first transfer leaves one that knows. The others leave the cheapest of those that know or are
        reached, or, if that costs less in all, of a neighbour that is told besides.
        """
        count = len(reached)
        if not count or not self._links[domain]:
            return 0
        out = self._out
        first = min(out[rank] for rank in known)
        others = (count - 1) * min(first, *(out[rank] for rank in reached))
        if not self._restricted and others:
            others = min(others, *(self._in[rank] + count * out[rank] for rank in self._ranks[domain]))
        return sum(self._in[rank] for rank in reached) + first + others

    def _over_uplinks(
        self, joint: JointClass, needers: Mapping[int, Ranks], always: Mapping[int, int]
    ) -> int:
        """A price that no way over uplinks beats, besides NVLink within holding domains.

        Each domain in need is fed by the cheapest domain that has the bytes, inside its pod or across. Each
        pod in need is entered at least once, one of them from a holding pod, and one feeding at least is by a
        holding domain. Handing bytes to a neighbour's NIC is shared by all copies. Cycles of pods in need
        that feed one another are not excluded.
        """
        copies = len(joint.needing_domains)
        total = 0
        holding: dict[int, int] = {}
        having: dict[int, int] = {}
        relays: dict[int, list[tuple[int, int]]] = {}
        wanting: dict[int, list[int]] = {}
        for domain, price in always.items():
            _lower(holding, self._pod(domain), price // copies)
            _lower(having, self._pod(domain), price // copies)
        held = {self._pod(domain) for domain in joint.holder_domains}
        for domain in joint.needing_domains:
            total += self._entry(domain, needers[domain])
            pod = self._pod(domain)
            wanting.setdefault(pod, []).append(domain)
            if copies > 1:
                price = self._relay(domain, needers[domain], copies - 1) // (copies - 1)
                relays.setdefault(pod, []).append((price, domain))
                _lower(having, pod, price)
        leaving = {pod: price for pod, price in having.items() if pod in held}
        direct, out, within = NEVER, NEVER, NEVER
        for pod, domains in wanting.items():
            across = self._across(pod, having)
            cheapest = min(across, holding.get(pod, NEVER))
            by_holder = min(holding.get(pod, NEVER), self._across(pod, holding))
            nearest = sorted(relays.get(pod, ()))[:2]  # the second one feeds the first
            prices = [
                min([cheapest, *(price for price, relay in nearest if relay != domain)]) for domain in domains
            ]
            total += sum(prices)
            if pod in held:
                within = min(within, by_holder - max(prices))
            else:
                total += across - max(prices)
                direct = min(direct, self._across(pod, holding) - across)
                out = min(out, self._across(pod, leaving) - across)
        entered = any(pod not in held for pod in wanting)
        return total + (min(direct, out + within) if entered else within)

    def _across(self, pod: int, prices: Mapping[int, int]) -> int:
        """The least price of feeding a domain of a pod from outside of it."""
        outside = min(
            (price + self._uplink_out(other) for other, price in prices.items() if other != pod),
            default=NEVER,
        )
        return min(NEVER, outside + (self._up_in[pod] if pod >= 0 else 0))

    def _uplink_out(self, pod: int) -> int:
        return self._up_out[pod] if pod >= 0 else 0

    def _pod(self, domain: int) -> int:
        """Pod of a domain; one in none is a pod of its own, whose uplink costs nothing."""
        return self._pod_of.get(domain, -1 - domain)


NEVER = 2**200
"""Price of what cannot happen."""


def _look_up(columns: Sequence[Ints], price: Callable[..., tuple[int, int]]) -> Ints:
    """Two prices per row, computed once for every distinct row of some columns; int64 of shape (2, rows)."""
    distinct, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    prices = np.array([price(*row) for row in distinct.tolist()], dtype=np.int64)
    found: Ints = prices[inverse.reshape(-1)].T
    return found


def _lower(prices: dict[int, int], pod: int, price: int) -> None:
    prices[pod] = min(price, prices.get(pod, price))
