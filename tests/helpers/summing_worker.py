"""A worker that joins a job as this project's workers do, and sums ones over the workers."""

from algorithms import TransportKind
from trainer.engine import mx
from trainer.rendezvous import roles
from trainer.rendezvous.cluster import ClusterSpec
from trainer.runtime.environment import prepare_environment
from utils import setup_logging

if __name__ == "__main__":
    setup_logging("worker")
    prepare_environment()
    cluster = ClusterSpec.from_environment("kvstore")
    assert cluster is not None
    with roles.join(cluster, TransportKind.SUM, 60) as joined:
        assert not joined.places  # one is a plain MXNet program
        assert joined.gather("speed", 1) is None
        store = joined.transport.store
        store.init(0, mx.nd.zeros(3))
        store.push(0, mx.nd.ones(3))
        total = mx.nd.zeros(3)
        store.pull(0, out=total)
        assert total.asnumpy().tolist() == [store.num_workers] * 3
