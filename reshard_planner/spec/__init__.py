"""Specs: the tensors with both layouts, the topology and the options of one reshard."""

from reshard_planner.spec.file import load_spec, parse_spec
from reshard_planner.spec.form import spec_from_dict, spec_to_dict
from reshard_planner.spec.values import Options, ReshardSpec, TensorSpec

__all__ = [
    "Options",
    "ReshardSpec",
    "TensorSpec",
    "load_spec",
    "parse_spec",
    "spec_from_dict",
    "spec_to_dict",
]
