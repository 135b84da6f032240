"""Two collectors and a learner (NumPy): whole rollouts with pictures go through a queue."""

import contextlib
import multiprocessing as mp
import queue

import numpy as np
from pace import Pace, end_with_parent

SIDE, PATCH, MOVES, ROLLOUT = 96, 12, 4, 256
FEATURES = (SIDE // PATCH) ** 2


def newest(box, old):
    """The last letter of a box, or the old one if there is none."""
    with contextlib.suppress(queue.Empty):
        while True:
            old = box.get_nowait()
    return old


def collect(number, rollouts, box):
    """Crawls over a picture and puts rollouts into the queue until it is killed."""
    end_with_parent()
    rng = np.random.default_rng(number)
    ground = rng.random((512, 512))
    matrix = np.zeros((FEATURES, MOVES))
    row = column = 200
    while True:
        matrix = newest(box, matrix)
        noise = rng.gumbel(size=(ROLLOUT, MOVES))
        rollout = []
        for t in range(ROLLOUT):
            picture = ground[row : row + SIDE, column : column + SIDE]
            action = int((picture[::PATCH, ::PATCH].ravel() @ matrix + noise[t]).argmax())
            row = (row + (3, -3, 0, 0)[action]) % (512 - SIDE)
            column = (column + (0, 0, 3, -3)[action]) % (512 - SIDE)
            reward = float(ground[row, column])
            rollout.append({"picture": picture, "action": action, "reward": reward})
        rollouts.put(rollout)


def learn(matrix, rollout):
    """One policy gradient step, and the rollout's return."""
    x = np.array([step["picture"][::PATCH, ::PATCH].ravel() for step in rollout])
    a = np.array([step["action"] for step in rollout])
    r = np.array([step["reward"] for step in rollout])
    togo = np.cumsum(r[::-1])[::-1] / ROLLOUT
    logits = x @ matrix
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    gradient = x.T @ ((np.eye(MOVES)[a] - p) * (togo - togo.mean())[:, None]) / ROLLOUT
    return matrix + 0.1 * gradient, r.sum()


def main():
    pace = Pace.from_args()
    context = mp.get_context("spawn")
    rollouts = context.Queue(maxsize=4)
    boxes = [context.Queue() for _ in range(2)]
    people = [
        context.Process(target=collect, args=(n, rollouts, box)) for n, box in enumerate(boxes)
    ]
    for person in people:
        person.start()
    matrix, score = np.zeros((FEATURES, MOVES)), 0.0
    rollouts.get()
    while pace.on():
        matrix, score = learn(matrix, rollouts.get())
        for box in boxes:
            box.put(matrix)
        pace.add(ROLLOUT)
    for person, box in zip(people, boxes, strict=True):
        person.kill()
        person.join()
        box.cancel_join_thread()  # nobody reads it any more
    print(f"last return {score:.2f}")
    pace.report()


if __name__ == "__main__":
    main()
