"""The viewer: a local page that shows the groups of a store. A service may own the store."""
