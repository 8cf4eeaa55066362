"""The agent: runs beside the database, dials out, decodes, filters and pushes. Read `pipeline` first."""

from agent.later import later

# gRPC's half for coroutines, and messages without protobuf's compiled half
with later("asyncio", "grpc.aio", "google.protobuf.internal.python_message"):
    import google.protobuf.internal.builder  # noqa: F401
    import grpc  # noqa: F401
