"""How many files and connections a process may have open: by its start all that its hard limit allows.

The soft limit of 1,024 that most systems begin with is for programs that use select(); a gateway has a connection for
each agent.
"""

import resource


def use_hard_limit() -> None:
    """Call before the first thread starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
