"""The viewer: shows a store's groups on a local page, even while a service uses the store."""
