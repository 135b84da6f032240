"""`world_model.py` with two threads."""

import world_model

world_model.THREADS = 2

if __name__ == "__main__":
    world_model.main()
