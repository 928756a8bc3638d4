"""Clients of the service, for threads and for asyncio."""
