"""Clients of a policy: blocking, asyncio, and in-process."""
