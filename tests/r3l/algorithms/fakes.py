"""What the algorithms' tests share: an algorithm by name, and its loss written out."""

from r3l.algorithms import losses, registry

NAMES = sorted(registry.REGISTRY)


def get(name="r3l", **settings):
    """The algorithm of that name with these settings."""
    return registry.REGISTRY[name](**settings).build()


def advantages_of(algorithm, trajectories):
    """Advantages of a group by its own rewards, and which trajectories are kept."""
    return algorithm.advantages([one.reward for one in trajectories], trajectories)


def total(batch, loss, **options):
    """The loss of a batch by one of `losses`."""
    batch = batch.masked().with_unit_ratio_for_distilled()
    return batch.total(loss(batch, **options)[0]).item()


def kl_of(batch, estimate=losses.k3_kl):
    """The KL of a batch to its reference."""
    batch = batch.masked()
    return batch.total(estimate(batch)).item()
