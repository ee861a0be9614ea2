"""Mixtures of critical paths."""

import random

import numpy as np
import pytest

from shardwright.solver.linear_program import Job, path_mixture


@pytest.mark.parametrize("seed", range(20))
def test_a_mixture_is_one_of_paths(seed):
    """What passes a job comes from those before it, and one path's worth begins somewhere."""
    draw = random.Random(seed)
    jobs = [Job((), {0: draw.choice([0.0, 1.0])}), Job((), {1: 1.0} if seed % 3 else {})]
    for number in range(2, 7):
        after = tuple(sorted(draw.sample(range(number), draw.randint(1, 2))))
        jobs.append(Job(after, {draw.randrange(2): draw.choice([0.0, 0.5, 2.0])}))
    jobs.append(Job(tuple(range(len(jobs))), {} if seed % 2 else {0: 1.0}))
    passed = path_mixture(jobs, 2, [{-1: draw.choice([0.0, 1.0]), 0: 1.0, 1: 1.0}])
    assert np.all((passed >= 0) & (passed <= 1 + 1e-9))
    begins = sum(passed[i] for i, job in enumerate(jobs) if not job.after)
    assert begins == pytest.approx(1.0)
    assert passed[-1] == pytest.approx(1.0)
