"""How a rank ends."""

import os
import sys


def end_rank():
    """All ranks are through. Their threads (gloo's, DeepSpeed's) are not waited for by those who own them: with the
    interpreter's own end some process in a thousand ends in std::terminate."""
    from torch import distributed

    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
