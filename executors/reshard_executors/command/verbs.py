"""The verbs of the command, in the order in which its help lists them."""

from reshard_executors.command.doctor import VERB as DOCTOR
from reshard_executors.command.run import VERB as RUN
from reshard_executors.command.verb import Verb

VERBS: tuple[Verb, ...] = (RUN, DOCTOR)
