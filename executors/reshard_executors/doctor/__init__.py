"""Doctor: checks a cluster before a plan is run on it.

Every rank gathers facts about itself, rank 0 judges those of all ranks, and all hear the same findings. Ranks
meet in a store alone (``council``), so that what keeps gloo or NCCL from connecting can still be told.

A check has a function ``gather``, which reads what is so here, and one ``judge``, which says what is wrong
with what all ranks have read; where they are long they have modules of their own:

- ``versions``, ``hosts``, ``ports`` (where ranks meet) and ``reach`` (whether they connect) do both.
- ``interfaces`` and ``devices`` read, with ``links``; ``interface_checks`` and ``device_checks`` judge.
- ``domains`` and ``egress`` judge what others read: ``judge_devices`` and ``judge_rule`` devices and
  variables, ``judge_traffic`` both what ``traffic`` measures by the plan of ``probe``.

``facts`` gathers and judges all that ranks find out each for itself, ``examine`` adds what they do together,
and ``visit`` is the way in. ``claims`` is what a plan expects, ``findings`` what comes out.
"""
