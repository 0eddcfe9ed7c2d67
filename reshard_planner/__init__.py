"""Reshard Planner: compiles two layouts of the same tensors and a cluster into a minimal transfer plan.

>>> import reshard_planner as rp
>>> train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
>>> serve = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
>>> spec = rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", train, serve)])
>>> rp.compile(spec).certificate.transfers
8
"""

# ruff: noqa: E402 - Ctrl-C is heard before anything large is imported
from reshard_planner import early

early.listen()

from reshard_planner.box import Box
from reshard_planner.compiler import compile  # noqa: A004 - the verb of the command line, used as rp.compile
from reshard_planner.errors import InputError, ReshardError, VerificationError
from reshard_planner.ir import Certificate, Plan, interpret, verify
from reshard_planner.layout import Layout, Mesh, Replicate, Shard, Storage, StoredBuffer, StridedShard, Tile
from reshard_planner.replan import Replan, replan
from reshard_planner.spec import Options, ReshardSpec, TensorSpec
from reshard_planner.topology import Topology

__all__ = [
    "Box",
    "Certificate",
    "InputError",
    "Layout",
    "Mesh",
    "Options",
    "Plan",
    "Replan",
    "Replicate",
    "ReshardError",
    "ReshardSpec",
    "Shard",
    "Storage",
    "StoredBuffer",
    "StridedShard",
    "TensorSpec",
    "Tile",
    "Topology",
    "VerificationError",
    "compile",
    "interpret",
    "replan",
    "verify",
]
