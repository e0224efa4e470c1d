"""A role of a job as a plain MXNet program, which knows nothing of this project: sums ones over the workers."""

import os

role = os.environ.pop("DMLC_ROLE")
from trainer.engine import mx  # noqa: E402  only for the aliases that numpy dropped

os.environ["DMLC_ROLE"] = role
store = mx.kv.create("dist_sync")
if role == "worker":
    store.init(0, mx.nd.zeros(3))
    store.push(0, mx.nd.ones(3))
    total = mx.nd.zeros(3)
    store.pull(0, out=total)
    assert total.asnumpy().tolist() == [store.num_workers] * 3
    store._barrier()  # as the workers of this project do before they leave
else:
    from mxnet.kvstore.kvstore_server import KVStoreServer

    KVStoreServer(store).run()
