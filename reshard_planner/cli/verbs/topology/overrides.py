"""Options that win over all sources."""

from __future__ import annotations

import argparse
from dataclasses import replace

from reshard_planner.errors import InputError
from reshard_planner.topology.cluster.model import Cluster


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Declare them; they are written into the cluster file, under ``overrides``."""
    parser.add_argument(
        "--rail",
        metavar="NIC=N",
        action="append",
        default=[],
        help="rail of a NIC, named mlx5_0 or host:mlx5_0",
    )
    parser.add_argument(
        "--disable-nic", metavar="NIC", action="append", default=[], help="a NIC that is not to be used"
    )
    parser.add_argument(
        "--domain",
        metavar="GPUS",
        action="append",
        default=[],
        help="a domain: hosts (a) or positions of GPUs of one (a:0-3), joined by +, such as a:0-3+b",
    )
    parser.add_argument(
        "--gpus-per-domain", metavar="N", type=int, help="split every domain into ones of this size"
    )
    parser.add_argument("--gpu-model", metavar="MODEL", help="model of all GPUs, such as H100")


def with_overrides(cluster: Cluster, arguments: argparse.Namespace) -> Cluster:
    """The cluster with the overrides of the options beside its own.

    Raises:
        InputError: if an option is none of what its help says.
    """
    old = cluster.overrides
    rails, given = dict(old.rails), dict[str, int]()
    for text in arguments.rail:
        nic, equals, rail = text.rpartition("=")
        if not equals or not (rail.isascii() and rail.isdigit() and len(rail) < 7):
            raise InputError(f"--rail is {text!r:.60}; expected NIC=N, such as mlx5_0=0")
        if given.setdefault(nic, int(rail)) != int(rail):
            raise InputError(f"--rail gives {nic!r:.60} the rails {given[nic]} and {rail}; expected one")
        rails[nic] = int(rail)
    if arguments.gpu_model is not None and not (arguments.gpu_model and arguments.gpu_model.isprintable()):
        raise InputError(f"--gpu-model is {arguments.gpu_model!r:.60}; expected a model, such as H100")
    if arguments.gpus_per_domain is not None and arguments.gpus_per_domain < 1:
        raise InputError(f"--gpus-per-domain is {arguments.gpus_per_domain}; expected at least 1")
    overrides = replace(
        old,
        rails=tuple(rails.items()),
        disabled_nics=tuple(dict.fromkeys((*old.disabled_nics, *arguments.disable_nic))),
        domains=(*old.domains, *(tuple(text.split("+")) for text in arguments.domain)),
        gpus_per_domain=arguments.gpus_per_domain or old.gpus_per_domain,
        gpu_model=arguments.gpu_model or old.gpu_model,
    )
    return replace(cluster, overrides=overrides)
