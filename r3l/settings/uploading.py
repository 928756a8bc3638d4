"""Settings of uploads (learner.upload)."""

from __future__ import annotations

from pydantic import Field

from r3l.settings.section import Section


class UploadConfig(Section):
    """Copies elsewhere of checkpoints, the final and the best model, made beside training."""

    to: str = Field(
        "",
        description="where to: any fsspec address (s3://bucket/path, file:///folder) or "
        "hf://user/repository; empty: nowhere",
    )
    checkpoints: bool = Field(
        True, description="upload every checkpoint too, not only model/ and best/"
    )
    wait_s: float = Field(
        600.0, ge=0, le=86_400, description="seconds the end of a run waits for the last upload"
    )
