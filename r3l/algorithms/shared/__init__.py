"""What several algorithms share: base classes, and rules of recall."""
