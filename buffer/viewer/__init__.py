"""The viewer: a local page that shows the groups of a store, even while a service uses it."""
