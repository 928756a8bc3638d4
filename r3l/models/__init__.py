"""Folders of models: how they are named, checked and read; and the shipped tiny policy."""
