"""Where a type checker finds the public names, which are imported at their first use."""

from buffer import AsyncBufferClient as AsyncBufferClient
from buffer import BufferClient as BufferClient
from buffer import Lease as Lease
from buffer.storage.store import Store as Store
from envs import ListedTasks as ListedTasks
from envs import SeededTasks as SeededTasks
from envs.exploring import explore as explore
from envs.exploring import tasks as tasks
from envs.registry import make
from envs.testing import check_env as check_env
from launch.cli import train as train
from r3l.algorithms.algorithm import Algorithm as Algorithm
from r3l.algorithms.batch import Batch as Batch
from r3l.algorithms.losses import TokenBatch as TokenBatch
from r3l.algorithms.published.arpo import ARPO as ARPO
from r3l.algorithms.published.critique_grpo import CritiqueGRPO as CritiqueGRPO
from r3l.algorithms.published.dapo import DAPO as DAPO
from r3l.algorithms.published.early_experience import EarlyExperience as EarlyExperience
from r3l.algorithms.published.exit import ExIt as ExIt
from r3l.algorithms.published.forward_kl import ForwardKL as ForwardKL
from r3l.algorithms.published.grpo import GRPO as GRPO
from r3l.algorithms.published.gspo import GSPO as GSPO
from r3l.algorithms.published.hill import HiLL as HiLL
from r3l.algorithms.published.opmd import OPMD as OPMD
from r3l.algorithms.published.pope import POPE as POPE
from r3l.algorithms.published.prefix_rl import PrefixRL as PrefixRL
from r3l.algorithms.published.r3 import R3 as R3
from r3l.algorithms.published.raft import RAFT as RAFT
from r3l.algorithms.published.reflect_grpo import ReflectGRPO as ReflectGRPO
from r3l.algorithms.published.restart_from_success import RestartFromSuccess as RestartFromSuccess
from r3l.algorithms.published.rloo import RLOO as RLOO
from r3l.algorithms.published.rlsd import RLSD as RLSD
from r3l.algorithms.published.rltf import RLTF as RLTF
from r3l.algorithms.published.rlvmr import RLVMR as RLVMR
from r3l.algorithms.published.sdpo import SDPO as SDPO
from r3l.algorithms.published.spear import SPEAR as SPEAR
from r3l.algorithms.queries import Query as Query
from r3l.algorithms.r3l import R3L as R3L
from r3l.algorithms.rows import Row as Row
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm as RatioAlgorithm
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry as ReflectAndRetry
from r3l.errors import UserError as UserError
from r3l.records import SUCCESS as SUCCESS
from r3l.records import AttemptKey as AttemptKey
from r3l.records import Group as Group
from r3l.records import GroupPlan as GroupPlan
from r3l.records import Origin as Origin
from r3l.records import Task as Task
from r3l.records import Trajectory as Trajectory
from r3l.records.imported import imported_attempt as imported_attempt
from r3l.records.imported import imported_chat as imported_chat
from r3l.rollout.chat import ChatFormat as ChatFormat
from r3l.rollout.env_interface import EnvSpec as EnvSpec
from r3l.rollout.exploration import Decoding as Decoding
from r3l.rollout.exploration import Exploration as Exploration
from r3l.rollout.exploration import Verdict as Verdict
from r3l.rollout.policy_interface import Policy as Policy
from r3l.rollout.policy_interface import Sample as Sample
from r3l.rollout.policy_interface import SampleParams as SampleParams
from r3l.run.config import RunConfig as RunConfig
from r3l.run.config import load
from r3l.training.group_memory import Memory as Memory
from r3l.training.local_policy import LocalPolicy as LocalPolicy
from r3l.training.trainer import Trainer as Trainer

PUBLIC: dict[str, str]
make_env = make
load_config = load
