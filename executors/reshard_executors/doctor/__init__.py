"""Doctor: checks a cluster before a plan is run on it.

Every rank gathers facts about itself, rank 0 judges those of all ranks, and all hear the same findings. Ranks
meet in a store alone, so that what keeps gloo or NCCL from connecting can still be told. Each module checks
one kind of thing: ``gather`` reads what is so here, ``judge`` compares what all ranks have read.
"""
