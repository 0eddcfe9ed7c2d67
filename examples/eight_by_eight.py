"""An 8x8 matrix goes from rows on two ranks to columns on four: the smallest reshard worth a look."""

import numpy as np

import reshard_planner as rp

train = rp.Layout(rp.Mesh([0, 1], ["tp"]), ["S(0)"])
serve = rp.Layout(rp.Mesh([2, 3, 4, 5], ["tp"]), ["S(1)"])
plan = rp.compile(rp.ReshardSpec([rp.TensorSpec("w", (8, 8), "bfloat16", train, serve)]))
rp.verify(plan)

matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)  # stands for bfloat16, of which numpy knows nothing
received = rp.interpret(plan, {0: {"w": [matrix[:4]]}, 1: {"w": [matrix[4:]]}}).destinations

print(plan)
for rank, column in zip(serve.mesh.ranks, range(0, 8, 2), strict=True):
    right = np.array_equal(received[rank]["w"][0], matrix[:, column : column + 2])
    print(f"rank {rank} has columns {column} and {column + 1}: {'right' if right else 'WRONG'}")
