"""The viewer: one local page that shows the groups of a store, also while a service owns it."""
