"""The two interfaces of group sampling in one place, for files that users write."""

from r3l.rollout.env_interface import Environment, EnvSpec, Offer, PlayedByAgent, Retry
from r3l.rollout.policy_interface import FinishReason, Policy, Sample, SampleParams

__all__ = [
    "EnvSpec",
    "Environment",
    "FinishReason",
    "Offer",
    "PlayedByAgent",
    "Policy",
    "Retry",
    "Sample",
    "SampleParams",
]
