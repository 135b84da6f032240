"""`clone_driver.py` with a checkpoint every 20 updates."""

import clone_driver

clone_driver.SAVE_EVERY = 20

if __name__ == "__main__":
    clone_driver.main()
