"""Q-learning with linear features for a game whose server sends each state as a line of JSON."""

import argparse
import json
import multiprocessing as mp
import socket
import time

import numpy as np
from phases import phase

SIZE, ACTIONS = 3000, 4


def serve(connection, seed):
    rng = np.random.default_rng(seed)
    state = rng.normal(size=SIZE)
    with connection.makefile("rw") as channel:
        for line in channel:
            action = json.loads(line)["action"]
            state = np.roll(state, action)
            answer = {"state": state.tolist(), "reward": float(state[0])}
            channel.write(json.dumps(answer) + "\n")
            channel.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    ours, theirs = socket.socketpair()
    server = mp.Process(target=serve, args=(theirs, args.seed), daemon=True)
    server.start()
    rng = np.random.default_rng(args.seed)
    weights = np.zeros((ACTIONS, SIZE))
    features, action, turn, total = np.zeros(SIZE), 0, 0, 0.0
    start = time.time()
    with ours.makefile("rw") as channel:
        while time.time() - start < args.seconds:
            with phase("waiting"):
                channel.write(json.dumps({"action": int(action)}) + "\n")
                channel.flush()
                message = json.loads(channel.readline())
                following, reward = np.array(message["state"]), message["reward"]
            with phase("learning"):
                target = reward + 0.9 * np.max(weights @ following)
                error = target - weights[action] @ features
                weights[action] += 1e-4 * error * features
            with phase("acting"):
                explore = rng.random() < 0.1
                action = rng.integers(ACTIONS) if explore else np.argmax(weights @ following)
            features, turn, total = following, turn + 1, total + reward
            if turn % 200 == 0:
                print(f"turn {turn}: mean reward {total / turn:.4f}", flush=True)


if __name__ == "__main__":
    main()
