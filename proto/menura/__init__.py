"""What the agent, the gateway and the lake agree on, and nothing else.

`menura.v1` is the wire; the modules beside it are pure: no I/O, no third-party import. What a process needs is here too
(`cli`, `distributions`, `signals`, `allocator`, `metrics_port`, `metric_families`, `health`, `log_format`), for those
that import it.
"""
