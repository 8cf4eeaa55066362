"""Tests, benches, and the commands that write documents from what they find."""

import os

# PySpark forks to start its JVM, and a server is started as another user. Where gRPC has threads, as after other tests,
# its handlers of a fork end the child now and then: 18 of 300 forks beside five servers, none without the handlers.
# Read when gRPC is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
