"""Policy clients: blocking, asyncio and in-process."""
