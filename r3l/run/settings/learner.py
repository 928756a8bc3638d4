"""Settings of the learner: its optimizer and adapters."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from r3l.settings.section import LONGEST_S, Section, without_words

Compute = Literal["auto", "dtype", "bfloat16"]
ADAPTERS_LR = 1e-5
Decay = Annotated[float, Field(ge=0, lt=1)]


class LoraConfig(Section):
    """Low-rank adapters, trained in place of the weights. An adapter adds (alpha / rank) · B·A to
    its target matrix. `rank`: number of columns of B and of rows of A."""

    rank: int = Field(0, ge=0, description="rank of the adapters; 0: none, all weights are trained")
    alpha: float = Field(32.0, gt=0, description="an adapter's product is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="linear layers with an adapter, such as q_proj; unset: all but the head"
    )

    @model_validator(mode="after")
    def _targets_need_a_rank(self) -> Self:
        if self.targets and not self.rank:
            raise ValueError("targets is set but rank is not, so all weights would be trained; "
                             "set rank, such as 16")  # fmt: skip
        return self


class LearnerConfig(Section):
    """The optimizer and its loop."""

    steps: int = Field(60, ge=0, description="optimizer steps")
    groups_per_step: int = Field(16, ge=1, le=4096, description="B, groups in one optimizer step")
    lr: float = Field(
        1e-6, gt=0, description=f"learning rate; unset: {ADAPTERS_LR:g} with adapters"
    )
    warmup_steps: int = Field(0, ge=0, description="linear learning-rate warm-up, steps")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="AdamW moment decays")
    grad_clip: float = Field(1.0, gt=0, description="global gradient norm limit")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the rate falls from warm-up to the last step"
    )
    min_lr_share: float = Field(
        0.0, ge=0, le=1, description="rate at the last step of a falling schedule, share of lr"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0, description="DeepSpeed ZeRO stage; bfloat16 uses at least 1"
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="kept in host memory: optimizer state (ZeRO 1-3), or parameters too (3)"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="parameter format; auto: float32 on CPU, bfloat16 on GPU"
    )
    compute: Compute = Field(
        "auto",
        description="format of matrix products; dtype: that of dtype; bfloat16: less CPU time with "
        "AVX512_BF16 or AMX, but less exact log-probabilities; auto: bfloat16 on a CPU that has "
        "one of them, for a model of at least 10 million parameters, otherwise dtype",
    )
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig())
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = Field(
        "auto", description="attention of padded rows (pack=rows); auto: what the model chooses"
    )
    gradient_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass to save memory"
    )
    tokens_per_micro_batch: int = Field(
        8192, ge=64, description="computed tokens per micro-batch: padded rows, or tree nodes"
    )
    pack: Literal["auto", "tree", "rows"] = Field(
        "auto",
        description="tree: tokens that rows share are computed once; rows: padded rows; auto: rows "
        "if a layer is not full attention, else tree (it pays from about 5 % of shared tokens on)",
    )
    part_norms: bool = Field(
        False,
        description="measure the gradient norm of each part of the loss, by one more forward pass, "
        "and one more backward pass and gradient in memory for each part",
    )
    publish_every: int = Field(
        1, ge=1, description="optimizer steps between two published versions of the weights"
    )
    anchor_every: int = Field(
        50,
        ge=1,
        description="published versions that this number divides are sent whole, not as patches",
    )
    journal_versions: int = Field(
        0,
        ge=0,
        description="number of newest published versions that the run keeps in journal/ and can "
        "rebuild; 0: no journal",
    )
    checkpoint_every: int = Field(
        50,
        ge=1,
        description="optimizer steps between checkpoints; the first ones come after 10, 20 and "
        "40 % of this number",
    )
    checkpoint_minutes: float = Field(
        10.0, gt=0, description="minutes without a checkpoint after which the next step is saved"
    )
    keep_checkpoints: int = Field(2, ge=1, description="newest checkpoints that stay on disk")
    keep_best: bool = Field(
        True,
        description="keep the weights of the best evaluation in best/ (costs two model copies)",
    )
    on_checkpoint: str = Field(
        "",
        description="a command to run on each checkpoint, and at the end on model/ and best/, such "
        "as `aws s3 sync {folder} s3://bucket/run/{name}`; {step} is the optimizer step",
    )
    on_checkpoint_s: float = Field(
        600.0,
        gt=0,
        le=LONGEST_S,
        description="seconds after which such a command is killed; a run's end waits as long for "
        "the last commands",
    )
    bad_steps_in_a_row: int = Field(
        3, ge=1, description="skipped steps in a row (loss or gradient not finite) that end the run"
    )
    restarts: int = Field(
        3, ge=0, description="how often a learner that dies is started again within an hour"
    )
    hang_s: float = Field(
        1200.0,
        ge=1,
        le=LONGEST_S,
        description="seconds that a learner's start, a micro-batch, an update, a broadcast or a "
        "checkpoint may each take; a learner that is silent for longer is started again",
    )
    deepspeed: Annotated[dict[str, Any], AfterValidator(without_words)] = Field(
        default_factory=dict, description="further DeepSpeed configuration, merged in"
    )

    @model_validator(mode="after")
    def _adapters_have_a_rate_of_their_own(self) -> Self:
        if self.lora.rank and "lr" not in self.model_fields_set:
            object.__setattr__(self, "lr", ADAPTERS_LR)  # settings are frozen for all others
        return self

    @model_validator(mode="after")
    def _packing_brings_its_attention(self) -> Self:
        if self.attention != "auto" and self.pack not in ("auto", "rows"):
            raise ValueError(
                f"attention {self.attention}: cannot be used with pack={self.pack}, which chooses "
                "its own attention; set pack=rows or attention=auto"
            )
        return self

    @model_validator(mode="after")
    def _part_norms_need_whole_weights(self) -> Self:
        if self.part_norms and self.zero_stage == 3:
            raise ValueError(
                "part_norms: zero_stage=3 leaves each rank a share of the weights; set zero_stage "
                "to 2 or less"
            )
        return self

    def publishes(self, version: int) -> bool:
        """Whether the weights of `version` are published to the actors."""
        return version % self.publish_every == 0 or version == self.steps

    def saves(self, version: int) -> bool:
        """Whether a checkpoint of `version` is due. The first checkpoints come early, to show
        soon whether the disk has room."""
        tenth = self.checkpoint_every // 10
        early = version > 0 and version in (tenth, 2 * tenth, 4 * tenth)
        return early or version % self.checkpoint_every == 0
