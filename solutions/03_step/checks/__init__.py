"""Lesson 03: what must hold of one training step by hand, one function for each property.

The oracles are torch's own: autograd for the gradient, the functional form of `torch.optim.Adam`, and
`torch.optim.swa_utils.get_ema_avg_fn`, all in float64. They share no line with a solution in numpy. The student's own
test is tried on steps of ours, right ones and wrong ones.

Adam hides constant factors: ten times the gradient moves the weights just as far. So the moments are compared
too, and each small function is also tried by itself.
"""
