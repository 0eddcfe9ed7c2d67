"""Whole models: parameters from configurations, and where frameworks keep them."""

from reshard_planner.models.load import load_model
from reshard_planner.models.model import Model, Parameter
from reshard_planner.models.parallelism import parse_parallelism
from reshard_planner.models.whole import build_spec

__all__ = ["Model", "Parameter", "build_spec", "load_model", "parse_parallelism"]
