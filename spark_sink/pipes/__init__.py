"""Pipes from a lake to what somebody's file names: standard output, files, Kafka, or a class that writes elsewhere."""
