"""Environments of OpenEnv servers (Meta and Hugging Face, BSD)."""
