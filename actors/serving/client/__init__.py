"""Policy clients: blocking and asyncio."""
