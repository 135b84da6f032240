"""Tree search whose nodes know their parents: cycles, which only the collector frees."""

import argparse
import random

from truth import Counts

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=15)
args = parser.parse_args()


class Node:
    def __init__(self, parent, move):
        self.parent, self.move, self.children, self.about = parent, move, [], {"visits": 0}


def search(depth, width=3):
    root = Node(None, None)
    level = [root]
    for _ in range(depth):
        level = [Node(node, move) for node in level for move in range(width)]
        for node in level:
            node.parent.children.append(node)
    best = max(level, key=lambda node: random.random())
    while best.parent is not root:
        best = best.parent
        best.about["visits"] += 1
    return best.move


moves, counts = [], Counts("garbage", args.seconds)
while counts.on():
    moves.append(search(7))
