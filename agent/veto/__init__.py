"""The policy of the database's host: what any gateway may ever have, whoever configures the sources.

::

    policy.yaml ─▶ policy_file ─▶ Policy ─▶ LocalPolicy ─▶ SourceVeto ─▶ filter.verdict, requests, cartography
    (the DBA's)    strict, owner   pure      replaced at     of one        outgoing: a second look at each message
                                             SIGHUP          source

Comes in: a file that the agent's user need not be able to write, and names that a server or a gateway says. Goes out:
a ruling for each table and column, with the line of the file that decides. Nothing is durable but the file. A kill
leaves nothing: the next start reads the file. While the agent runs, SIGHUP has the file read again; one that can't be
read leaves the former policy in force. Another policy ends all streams: what has not left by then is made anew.

All lines that speak of a table have to agree. A table leaves when a line names it, or `default` is open, and no line
denies it; a column leaves when no such line keeps it back. What lets leave counts for names as they are written, what
keeps back for names in any case. A line with `sources` lets leave from those of the agent's own file alone, and keeps
back from all that the control plane configures too: that may call a server by any name.
"""
