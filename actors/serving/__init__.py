"""The policy as a service: a gRPC server whose sessions are remote environments, and the clients that talk to it."""
