"""The wire: generated at build time from the .proto files beside this one."""
