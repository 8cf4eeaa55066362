"""Where Spark runs, by the address of its master."""


def is_local(master: str) -> bool:
    """Whether all of it is one process of this machine.

    >>> is_local("local[2]"), is_local("spark://local:7077")
    (True, False)
    """
    return master == "local" or master.startswith("local[")
