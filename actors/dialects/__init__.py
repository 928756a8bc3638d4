"""The dialects in which agents ask the policy: requests, fields, answers, streams."""
