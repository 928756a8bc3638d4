"""One rank of tests.learner.ranks: `python -m tests.learner.one_rank CALL`, where CALL is a pickled
function with its arguments. Its environment says which rank it is."""

import errno
import gc
import pickle
import sys

import torch

from r3l.run.process.torch_exit import end_process

TAKEN = 98
"""Exit code of a rank whose port is taken."""

if __name__ == "__main__":
    work, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))
    torch.set_num_threads(1)
    gc.freeze()  # what was imported: DeepSpeed collects garbage often
    try:
        work(*arguments)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        end_process(TAKEN)
    end_process(0)
