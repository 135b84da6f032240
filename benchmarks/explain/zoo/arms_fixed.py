"""`arms`, where those arms go on that have answered."""

from multiprocessing.connection import wait

import arms


def gather(conns):
    ready = wait(conns)
    return [(i, conn.recv()) for i, conn in enumerate(conns) if conn in ready]


arms.gather = gather

if __name__ == "__main__":
    arms.main()
