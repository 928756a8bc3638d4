"""Trains in this process with plain PyTorch: rows of an algorithm to new weights, and a policy that
samples with them. Only this folder of r3l needs torch and transformers; nothing above it imports it
before it is used."""
