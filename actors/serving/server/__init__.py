"""The gRPC policy server."""
