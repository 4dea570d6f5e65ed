"""Policy serving over gRPC: the server, its clients, and the messages they share."""
