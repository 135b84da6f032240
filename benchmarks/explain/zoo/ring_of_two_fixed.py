"""`ring_of_two.py` averaging all gradients as one flat tensor."""

import ring_of_two
import torch
import torch.distributed as dist


def average(model):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, op=dist.ReduceOp.SUM)
    flat /= ring_of_two.RANKS
    for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(part.view_as(grad))


ring_of_two.average = average

if __name__ == "__main__":
    ring_of_two.main()
