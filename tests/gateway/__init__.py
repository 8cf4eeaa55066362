"""Tests of the gateway: a real gRPC server in this process, and a scripted agent that speaks the protocol."""
