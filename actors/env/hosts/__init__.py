"""Host networks: MLP, 1-D and 2-D CNN, each with slots."""
