"""`clone_driver.py` with a checkpoint every 100 updates."""

import clone_driver

clone_driver.SAVE_EVERY = 100

if __name__ == "__main__":
    clone_driver.main()
